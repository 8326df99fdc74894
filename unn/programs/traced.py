"""Tracing of generative programs: the graph and draws."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Concatenate, ParamSpec

import numpy as np
import torch
from torch import Tensor

from ..errors import DeclarationError, ObservationError, UnnError, whole_number
from ..factor_graph import FactorGraph
from ..ops.seeds import generator_for
from .build import build
from .kinds import Array
from .repeated import global_randomness, other_randomness, refuse_difference
from .tape import Drawing, Shape, Tape
from .tracer import Tracer

P = ParamSpec("P")


class Traced:
    """A traced program.

    Attributes:
        graph: variables and their dependences: ``Depends`` factors with patterns where the program is
            regular.
        tape: tape of the run.
    """

    def __init__(self, name: str, tape: Tape) -> None:
        self.tape = tape
        self.graph: FactorGraph = build(name, tape)
        self._plan = tape.plan()

    @cached_property
    def edges(self) -> list[tuple[str, str]]:
        """Names of parent and child of each edge, such as ``("A[0,1]", "C[0,2,1]")``, in the order of the
        graph."""
        order: dict[int, tuple[int, str]] = {}
        for recorded in self.tape.variables.values():
            for flat, node in enumerate(recorded.nodes.ravel().tolist()):
                order[node] = len(order), recorded.entry(flat)
        return [
            (order[parent][1], name)
            for child, (_, name) in order.items()
            for parent in sorted(self.tape.parents[child], key=order.__getitem__)
        ]

    @cached_property
    def random_variables(self) -> tuple[str, ...]:
        """Names of the variables whose entries are all drawn from distributions."""
        drawn = {int(node) for s in self.tape.statements if s.role == "sample" for node in s.nodes.ravel()}
        return tuple(
            name
            for name, recorded in self.tape.variables.items()
            if drawn.issuperset(recorded.nodes.ravel().tolist())
        )

    def draw(
        self,
        count: int,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        *,
        seed: int | None = None,
    ) -> dict[str, Tensor]:
        """Draw all variables from the program by ancestral sampling: training data for the graph.

        Every variable is rounded to ``dtype`` when it is drawn, and its children are computed from the
        rounded value in double precision, so deterministic relations are exact up to the final rounding.

        Args:
            count: number of draws, at least 1.
            generator: random number generator; torch's default generator if left out. Equal seeds give equal
                draws.
            dtype: dtype of the result; torch's default dtype if left out.
            seed: seed in place of a generator.

        Returns:
            Values by variable, shape ``(count, *shape)``. Binary values are 0 or 1; categories are one-hot
            along a last axis, ``(count, *shape, options)``.

        Raises:
            ObservationError: for an invalid count, dtype or seed, or both a generator and a seed.
            DeclarationError: for a draw with a parameter or a random index out of range, or a value that is
                not finite.
        """
        dtype = torch.get_default_dtype() if dtype is None else dtype
        whole_number("program: draw: the number of draws", count, 1, ObservationError)
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise ObservationError(
                f"program: draw gives values of a floating dtype such as torch.float32, got {dtype!r}."
            )
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
        values = {}
        for recorded in self.tape.variables.values():
            options = recorded.values.options
            x = torch.from_numpy(stored[recorded.name].reshape(count, *recorded.nodes.shape))
            values[recorded.name] = (torch.nn.functional.one_hot(x, options) if options else x).to(dtype)
        return values

    def __repr__(self) -> str:
        edges = sum(len(parents) for parents in self.tape.parents)
        names = ", ".join(self.tape.variables)
        return (
            f"Traced {self.graph.name!r}: {len(self.tape.variables)} variables ({names}), "
            f"{len(self.tape.parents)} nodes, {edges} edges"
        )


def trace(program: Callable[Concatenate[Tracer, P], object], /, *args: P.args, **options: P.kwargs) -> Traced:
    """Run a generative program and build its dependence graph.

    This is the compiler of Graphically Structured Diffusion Models (Weilbach, Harvey and Wood, 2023),
    Appendix L, for Python programs. Random variables are drawn with ``t.sample``, values computed from them
    become variables with ``t.deterministic``, and ``t.empty`` declares arrays whose entries are assigned in
    loops. Values that are not variables propagate dependence. Control flow must not depend on random values:
    conditions on them raise an error that names the variable.

    Edges between entries of arrays become ``Depends`` factors with patterns, and axes indexed by the same
    loops get the same name. In a regular relation, each axis of the parent equals an axis of the child, is
    shifted against it, runs over all values, or is split (``(i c)``); unions of a few such relations are
    supported. Other relations are stored as lists of pairs; the adjacency is exact in any case.

    The mask alone does not determine the exchangeable indices: that of ``y = W x`` is symmetric in x and in y
    for every W. Each symmetry of the mask is therefore checked on the program: at permuted values, each node
    must have the distribution parameters, or the deterministic value, of the node that it replaces at drawn
    values. The letters of all other indices are declared as ``ordered``, so that ``symmetries()`` does not
    report them and a denoiser gives their values positions. Symmetries that cannot be verified count as
    ordered.

    Args:
        program: function whose first argument is the tracer ``t``; its result is ignored.
        args, options: its other arguments.

    Returns:
        The traced program, with its graph and draws.

    Raises:
        DeclarationError: for control flow that depends on a random value, an index out of range, a name in
            use, an entry without a value, a parameter out of range, or two runs that differ.

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
        raise DeclarationError(
            f"program: trace takes a function whose first argument is the tracer t, got {program!r}."
        )
    before = global_randomness()
    tape = _record(program, args, options)
    # a program that uses global random numbers may behave equally for many of them
    for seed in range(_RUNS if global_randomness() != before else 1):
        with other_randomness(seed):
            refuse_difference(tape, _record(program, args, options))
    return Traced(getattr(program, "__name__", "program"), tape)


_RUNS = 7
"""Number of additional runs of a program that uses global random numbers."""


def _record(program: Callable[..., object], args: tuple[Any, ...], options: dict[str, Any]) -> Tape:
    """The tape of one run."""
    tracer = Tracer()
    try:
        program(tracer, *args, **options)
    except (TypeError, ValueError) as error:
        # numpy wraps errors raised by entries of an array in its own
        if isinstance(error.__cause__, UnnError) and not isinstance(error, UnnError):
            raise error.__cause__ from None
        raise
    return tracer.tape


def _numpy(x: Tensor) -> Array:
    array: Array = x.cpu().numpy()
    return array
