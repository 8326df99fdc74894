"""Run a generative program: its graph, and as many draws from it as wanted."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Concatenate, ParamSpec

import numpy as np
import torch
from torch import Tensor

from ..errors import DeclarationError, ObservationError, UnnError
from ..factor_graph import FactorGraph
from ..ops.seeds import generator_for
from .build import build
from .kinds import Array
from .repeated import global_randomness, other_randomness, refuse_difference
from .tape import Drawing, Shape, Tape
from .tracer import Tracer

P = ParamSpec("P")


class Traced:
    """A program that was recorded.

    Attributes:
        graph: its variables, and which depend on which: ``Depends`` factors with patterns where the program is regular.
        tape: what it computed.
    """

    def __init__(self, name: str, tape: Tape) -> None:
        self.tape = tape
        self.graph: FactorGraph = build(name, tape)
        self._plan = tape.plan()

    @cached_property
    def edges(self) -> list[tuple[str, str]]:
        """Parent and child of each edge, by the names of their nodes, such as ``("A[0,1]", "C[0,2,1]")``; in the order of the graph."""
        order: dict[int, tuple[int, str]] = {}
        for recorded in self.tape.variables.values():
            for flat, node in enumerate(recorded.nodes.ravel().tolist()):
                order[node] = len(order), recorded.entry(flat)
        return [(order[parent][1], name) for child, (_, name) in order.items() for parent in sorted(self.tape.parents[child], key=order.__getitem__)]

    @cached_property
    def random_variables(self) -> tuple[str, ...]:
        """Names of the variables whose entries are all drawn from distributions, none computed from others."""
        drawn = {int(node) for s in self.tape.statements if s.what == "sample" for node in s.nodes.ravel()}
        return tuple(name for name, recorded in self.tape.variables.items() if drawn.issuperset(recorded.nodes.ravel().tolist()))

    def draw(
        self, count: int, generator: torch.Generator | None = None, dtype: torch.dtype | None = None, *, seed: int | None = None
    ) -> dict[str, Tensor]:
        """Draw all variables from the program, each after its parents: training data for the graph.

        Every variable is rounded to ``dtype`` when it is drawn, and what depends on it is computed from the rounded value in double precision; so
        deterministic relations hold exactly, up to that last rounding.

        Args:
            count: how many draws, at least 1.
            generator: of random numbers; torch's own by default. The same seed gives the same draws.
            dtype: of the result; torch's default if left out.
            seed: instead of a generator.

        Returns:
            Values by variable, shape ``(count, *shape)``. Binary ones are 0 or 1, categories one-hot along a last axis, ``(count, *shape, options)``.

        Raises:
            ObservationError: for a count, a dtype or a seed that is none, or a generator and a seed.
            DeclarationError: for a draw in which parameters of a distribution are out of range, a random index is, or a value is not finite.
        """
        dtype = torch.get_default_dtype() if dtype is None else dtype
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ObservationError(f"program: draw takes a number of draws that is a whole number >= 1, got {count!r}.")
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise ObservationError(f"program: draw gives values of a floating dtype such as torch.float32, got {dtype!r}.")
        generator = generator_for("program: draw", generator, seed)
        device = generator.device if generator is not None else torch.device("cpu")

        def normal(shape: Shape) -> Array:
            return _numpy(torch.randn(shape, generator=generator, dtype=torch.float64, device=device))

        def uniform(shape: Shape) -> Array:
            return _numpy(torch.rand(shape, generator=generator, dtype=torch.float64, device=device))

        def rounded(x: Array) -> Array:
            return x if dtype == torch.float64 else _numpy(torch.from_numpy(x).to(dtype).double())

        stored: dict[str, Array] = {}
        for recorded in self.tape.variables.values():
            stored[recorded.name] = np.zeros((count, recorded.nodes.size), recorded.values.dtype)
        self.tape.replay(Drawing(count, normal, uniform, rounded, stored), self._plan)
        found = {}
        for recorded in self.tape.variables.values():
            options = recorded.values.options
            x = torch.from_numpy(stored[recorded.name].reshape(count, *recorded.nodes.shape))
            found[recorded.name] = (torch.nn.functional.one_hot(x, options) if options else x).to(dtype)
        return found

    def __repr__(self) -> str:
        edges = sum(len(parents) for parents in self.tape.parents)
        names = ", ".join(self.tape.variables)
        return f"Traced {self.graph.name!r}: {len(self.tape.variables)} variables ({names}), {len(self.tape.parents)} nodes, {edges} edges"


def trace(program: Callable[Concatenate[Tracer, P], object], /, *args: P.args, **options: P.kwargs) -> Traced:
    """Run a generative program and find the graph of what depends on what.

    This is the compiler of Graphically Structured Diffusion Models (Weilbach, Harvey and Wood, 2023), Appendix L, for programs in Python. Random
    variables are drawn with ``t.sample``, values computed from them become variables with ``t.deterministic``, and ``t.empty`` declares arrays
    whose entries are assigned in loops. A value that is no variable passes dependence on. What the program does must not depend on random values:
    conditions on them are refused, with the name of the variable.

    Edges between entries of arrays become factors ``Depends`` with patterns, and axes that the same loops run over get the same name. A regular
    relation is one in which each axis of the parent equals an axis of the child, is shifted against it, runs over all values, or is split
    (``(i c)``), or a union of a few such relations. Anything else is kept as a list of pairs; the adjacency is exact in any case.

    The mask alone does not say which indices are exchangeable: that of ``y = W x`` is symmetric in x and in y, whatever W is. So each symmetry of
    the mask is checked on the program: at drawn values, the parameters of the distribution of every node, or its deterministic value, must be
    those of the node that takes its place, at permuted values. The letters of all other indices are declared as ``ordered``, so that
    ``symmetries()`` does not report them and a denoiser gives their values positions. What cannot be verified counts as ordered.

    Args:
        program: takes the tracer ``t`` first; what it returns is not used.
        args, options: its other arguments.

    Returns:
        The graph, and draws from the program.

    Raises:
        DeclarationError: says what in the program cannot be: a condition on a random value or another use of it that would decide what the program
            does, an index that is out of range, a name in use, an entry without a value, parameters out of range; two runs that differ.

    Example:
        >>> import unn
        >>> from unn.programs import Bernoulli, Uniform
        >>> def model(t, m=3, n=3, k=2):
        ...     A = t.sample("A", Uniform(0, 1), shape=(m, k))
        ...     R = t.sample("R", Bernoulli(0.3), shape=(k, n))
        ...     C, E = t.empty("C", (m, n, k)), t.empty("E", (m, n))
        ...     for i in range(m):
        ...         for j in range(n):
        ...             for l in range(k):
        ...                 C[i, j, l] = t.deterministic(A[i, l] * R[l, j])
        ...             E[i, j] = t.deterministic(sum(C[i, j, l] for l in range(k)))
        >>> list(unn.trace(model).graph.factors.values())
        [C[i j k] depends on A[i k], R[k j], E[i j] depends on C[i j k]]
    """
    if not callable(program):
        raise DeclarationError(f"program: trace takes a function whose first argument is the tracer t, got {program!r}.")
    before = global_randomness()
    tape = _recorded(program, args, options)
    # a program that uses random numbers may do the same with many of them
    for seed in range(_RUNS if global_randomness() != before else 1):
        with other_randomness(seed):
            refuse_difference(tape, _recorded(program, args, options))
    return Traced(getattr(program, "__name__", "program"), tape)


_RUNS = 7
"""Further runs of a program that uses random numbers of its own."""


def _recorded(program: Callable[..., object], args: tuple[Any, ...], options: dict[str, Any]) -> Tape:
    """The record of one run."""
    tracer = Tracer()
    try:
        program(tracer, *args, **options)
    except (TypeError, ValueError) as error:
        # numpy puts an error of its own before what it finds wrong with an entry of an array
        if isinstance(error.__cause__, UnnError) and not isinstance(error, UnnError):
            raise error.__cause__ from None
        raise
    return tracer.tape


def _numpy(x: Tensor) -> Array:
    found: Array = x.cpu().numpy()
    return found
