"""Tracing of generative programs: the graph and draws."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Concatenate, ParamSpec

import numpy as np
import torch
from torch import Tensor

from ..errors import DeclarationError, ObservationError, UnnError, whole_number
from ..factor_graph import FactorGraph
from ..graph.partial import Partial
from ..networks.tokens import Rows
from ..ops.seeds import generator_for
from .build import build
from .density import in_single_precision, log_prob, stored_evidence, stored_values
from .kinds import Array
from .possible import require_possible
from .posterior import sample_posterior
from .repeated import global_randomness, other_randomness, refuse_difference
from .tape import Drawing, Recorded, Shape, Tape
from .tracer import Tracer

P = ParamSpec("P")


@dataclass(frozen=True, eq=False)
class Posterior:
    """Samples of all variables of a program given some.

    Attributes:
        values: values by variable, shape ``(count, *shape)``.
        log_evidence: estimate of the logarithm of the density of the evidence.
        powers: number of powers of this density between 0 and 1 that were sampled one after another.
        accepted: mean number of accepted moves of a sample at the power 1; few mean that samples are
            dependent.
    """

    values: Mapping[str, Tensor]
    log_evidence: float
    powers: int
    accepted: float

    def __getitem__(self, name: str) -> Tensor:
        return self.values[name]


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
        drawn = self.tape.drawn_nodes()
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
            along a last axis, ``(count, *shape, options)``, along which vectors of one node have their
            entries.

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
            kind = recorded.values
            stored[recorded.name] = np.zeros((count, recorded.nodes.size, *kind.features), kind.dtype)
        precision = torch.finfo(dtype)
        drawing = Drawing(
            count,
            normal,
            uniform,
            rounded,
            stored,
            _numpy_generator(generator, device),
            precision.tiny,
            1 - precision.eps / 2,
        )
        self.tape.replay(drawing, self._plan)
        return {
            recorded.name: _as_tensor(recorded, stored[recorded.name], dtype)
            for recorded in self.tape.variables.values()
        }

    def log_prob(self, values: Mapping[str, Tensor]) -> Tensor:
        """Logarithm of the joint density of values, or of their probability where they are discrete.

        The densities of all random variables given their parents are multiplied; values outside their
        support have -inf.

        Args:
            values: values of all random variables, as from ``draw``, shape ``(batch, *shape)``. Computed
                variables may be left out; given ones must agree with what is computed, to 1e-4 of its size or
                of 1, which allows the rounding of single precision, or the density is -inf.

        Returns:
            Shape ``(batch,)``, in double precision.

        Raises:
            ObservationError: for missing or unknown variables, values that do not fit the variables, or NaN.
            DeclarationError: for a distribution of one's own without a density.
        """
        stored, single = stored_values(self.tape, values), in_single_precision(values)
        return torch.from_numpy(log_prob(self.tape, stored, self._plan, single=single))

    def require_possible(self, given: Mapping[str, Tensor | Partial]) -> None:
        """Check that evidence does not have density zero, as far as given values decide it.

        Every given value whose parents are all given must have a density above zero, and given computed
        values must agree with what they are computed from. Whether a value is possible given parents that
        are not given is not decided.

        Args:
            given: evidence by variable, as for ``posterior``.

        Raises:
            ObservationError: for evidence that does not fit the program, or names the entry that is
                impossible.
        """
        evidence, single = stored_evidence(self.tape, Rows(self.graph, {}), given), in_single_precision(given)
        require_possible(self.tape, evidence, self._plan, single=single)

    def posterior(
        self, given: Mapping[str, Tensor | Partial], count: int = 10_000, *, seed: int | None = None
    ) -> Posterior:
        """Sample all variables given some, from the density of the program, without a trained network.

        The samples are those of annealed sequential Monte Carlo: a reference for posteriors of a few dozen
        variables, and slower by orders of magnitude than a denoiser. Discrete values that are drawn jointly,
        such as a permutation, and on which the evidence depends must be given.

        Args:
            given: evidence by variable, shape ``(*shape)`` or ``(1, *shape)``, complete or partial (with a
                mask over nodes).
            count: number of samples, at least 8; together they are the particles, so that more are also
                better.
            seed: seed; torch's default generator if left out.

        Returns:
            Values by variable, shape ``(count, *shape)``, in double precision, and the estimated logarithm of
            the density of the evidence.

        Raises:
            ObservationError: for evidence that does not fit the program, on computed variables, or with
                density zero.
            ArgumentError: for unobserved discrete values that are drawn jointly, on which the evidence
                depends.
            DeclarationError: for a distribution of one's own without a density.
        """
        whole_number("program: posterior: the number of samples", count, 8, ObservationError)
        generator = generator_for("program: posterior", None, seed)
        source = _numpy_generator(generator, torch.device("cpu"))()
        evidence, single = stored_evidence(self.tape, Rows(self.graph, {}), given), in_single_precision(given)
        particles = sample_posterior(self.tape, evidence, count, source, single=single)
        values = {
            recorded.name: _as_tensor(recorded, particles.values[recorded.name], torch.float64)
            for recorded in self.tape.variables.values()
        }
        return Posterior(values, particles.log_evidence, particles.powers, particles.accepted)

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
    _check_arguments(program, args, options)
    return Traced(getattr(program, "__name__", "program"), record_twice(program, args, options))


def _check_arguments(program: Callable[..., object], args: tuple[Any, ...], options: dict[str, Any]) -> None:
    try:
        signature = inspect.signature(program)
    except ValueError:
        # some compiled functions have none
        return
    try:
        signature.bind(Tracer(), *args, **options)
    except TypeError as error:
        name = getattr(program, "__name__", "program")
        raise DeclarationError(
            f"program {name!r}: {error}; it is called with the tracer t, and then with the other arguments "
            "of trace."
        ) from None


def record_twice(program: Callable[..., object], args: tuple[Any, ...], options: dict[str, Any]) -> Tape:
    """The tape of a program, which is run again to check that runs are equal.

    Raises:
        DeclarationError: as of ``trace``.
    """
    before = global_randomness()
    tape = _record(program, args, options)
    # a program that uses global random numbers may behave equally for many of them
    for seed in range(_RUNS if global_randomness() != before else 1):
        with other_randomness(seed):
            refuse_difference(tape, _record(program, args, options))
    return tape


_RUNS = 7
"""Number of additional runs of a program that uses global random numbers."""


def _record(program: Callable[..., object], args: tuple[Any, ...], options: dict[str, Any]) -> Tape:
    """The tape of one run."""
    tracer = Tracer()
    try:
        result = program(tracer, *args, **options)
    except (TypeError, ValueError) as error:
        # numpy wraps errors raised by entries of an array in its own
        if isinstance(error.__cause__, UnnError) and not isinstance(error, UnnError):
            raise error.__cause__ from None
        raise
    if inspect.iscoroutine(result):
        # otherwise Python warns that it was never awaited
        result.close()
    if inspect.isgenerator(result) or inspect.iscoroutine(result) or inspect.isasyncgen(result):
        raise DeclarationError(
            f"program {getattr(program, '__name__', 'program')!r}: a function with yield or async does not "
            "run when it is called; trace takes a plain function."
        )
    return tracer.tape


def _numpy_generator(
    generator: torch.Generator | None, device: torch.device
) -> Callable[[], np.random.Generator]:
    """A function that returns one numpy generator, seeded by torch's when it is first needed."""

    @cache
    def made() -> np.random.Generator:
        seed = torch.randint(2**62, (), generator=generator, device=device)
        return np.random.default_rng(int(seed))

    return made


def _as_tensor(recorded: Recorded, stored: Array, dtype: torch.dtype) -> Tensor:
    """Values of a variable in the shape of the graph."""
    kind = recorded.values
    x = torch.from_numpy(stored.reshape(len(stored), *recorded.nodes.shape, *kind.features))
    if kind.name == "category":
        x = torch.nn.functional.one_hot(x, kind.options)
    return x.to(dtype)


def _numpy(x: Tensor) -> Array:
    array: Array = x.cpu().numpy()
    return array
