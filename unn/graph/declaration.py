"""The declaration: named arrays and the factors that couple them."""

from __future__ import annotations

import keyword
import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar, cast, overload

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ..errors import DeclarationError, suggest, unknown, whole_number
from ..regularizers import Elementwise, Regularizer
from .arrays import Array, Constant, Index, Indices, Parameter, Variable, parse_axes
from .bounds import entry_bounds
from .factor import Constraint, EnergyFactor, Factor
from .fusion import Fusion, check_fusions
from .sizes import SizeRelation, SizeTable

Initializer = Literal["fan_in", "zeros", "ones", "normal"] | float | Tensor | Callable[[Tensor], object]


F = TypeVar("F", bound=Factor)
M = TypeVar("M")


class Declaration(nn.Module):
    """Variables with regularizers, parameters, constants, indices, and the factors that couple them.

    As an ``nn.Module``, it holds the parameters that are trained, moved and saved. ``unn.FactorGraph`` adds
    energies, structural queries and figures.

    Args:
        name: used in messages and figures.
        sizes: static sizes of axes by name; the sizes of other axes are dynamic, inferred from the values of
            each call.
    """

    def __init__(self, name: str = "graph", /, **sizes: int) -> None:
        super().__init__()
        if not isinstance(name, str):
            raise DeclarationError(f"the name of a graph must be a string, got {name!r}.")
        sizes = {axis: int(size) if isinstance(size, np.integer) else size for axis, size in sizes.items()}
        for axis, size in sizes.items():
            whole_number(f"axis {axis!r}: the size", size, 0)
        self.name = name
        self.sizes = dict(sizes)
        self.arrays: dict[str, Array] = {}
        self.factors: dict[str, Factor] = {}
        self._variables: dict[str, Variable] = {}
        self._pending: dict[str, Initializer] = {}
        self._name_counts: dict[str, int] = {}
        self._table = SizeTable(self.sizes)
        self._relations: list[SizeRelation] = []
        self._fusions: list[Fusion] = []
        self._memo: dict[Hashable, object] = {}

    # -- declarations ----------------------------------------------------------------------------------------

    def variable(
        self,
        name: str,
        axes: str,
        regularizer: Regularizer = None,  # type: ignore[assignment]
        bounds: tuple[ArrayLike, ArrayLike] | None = None,
    ) -> Variable:
        """Declare an array that can be observed or inferred.

        Args:
            name: unique identifier in the graph.
            axes: names separated by spaces; axes left of a bar index separate nodes: ``"row col | digit"``.
            regularizer: determines the domain and the activation.
            bounds: lower and upper bounds of real entries or counts, inside the domain of the regularizer,
                where they differ from one entry to the next: each a number or an array that broadcasts to the
                shape of the variable. Samples stay inside them. Factors with an energy do not take such a
                variable.

        Raises:
            DeclarationError: for a name in use, axes that are not names, a regularizer that does not fit
                the axes, or bounds that do not fit both.
        """
        names, barred = parse_axes("variable", name, axes)
        if isinstance(regularizer, type) or not isinstance(regularizer, Regularizer):
            raise DeclarationError(
                f"variable {name!r} needs a regularizer such as unn.SquaredNorm() or unn.Entropy(), got "
                f"{regularizer!r}."
            )
        bound = regularizer.bind(names, name)
        for axis in bound.over_axes(names):
            if axis in names[:barred] and axis not in names[barred:]:
                raise DeclarationError(
                    f"variable {name!r}: {bound!r} normalises over the node axis {axis!r}; only feature "
                    "axes, right of the bar, can depend on one another. Move the bar, or choose another axis "
                    "with over=."
                )
        elementwise = isinstance(bound, Elementwise)
        node_axes = names if elementwise and "|" not in axes else names[:barred]
        has_bar = barred > 0 or (elementwise and "|" in axes)
        variable = Variable(name, names, bound, node_axes, has_bar)
        if bounds is not None:
            static = self._table.static
            sizes = {axis: self.sizes.get(axis, static.get(self._table.root(axis))) for axis in names}
            variable = replace(variable, bounds=entry_bounds(variable, bounds, sizes))
        self._declare(variable)
        try:
            # the size rules of the regularizer may conflict with known sizes
            _ = self._table.solve({}) if self._table.has_rules else None
        except DeclarationError:
            del self._variables[name]
            self._forget(name)
            raise
        return variable

    def parameter(self, name: str, axes: str, init: Initializer | None = None) -> Parameter:
        """Declare a learned array.

        Args:
            name: unique identifier in the graph; also its name in ``state_dict()``.
            axes: names separated by spaces.
            init: ``"fan_in"`` (uniform in +-1/sqrt(product of all sizes but the first), as
                ``torch.nn.Linear``; the default from two axes on), ``"zeros"`` (the default with one axis),
                ``"ones"``, ``"normal"`` (standard deviation 0.01), a number (standard deviation), a tensor of
                values, or a function that fills a tensor in place.

        Raises:
            DeclarationError: for a name in use, or values that do not fit the axes.
        """
        names, _ = parse_axes("parameter", name, axes)
        if init is None:
            init = "fan_in" if len(names) > 1 else "zeros"
        if isinstance(init, str) and init not in ("fan_in", "zeros", "ones", "normal"):
            raise DeclarationError(
                f"parameter {name!r}: unknown init "
                f"{init!r}.{suggest(init, ('fan_in', 'zeros', 'ones', 'normal'))}"
            )
        parameter = Parameter(name, names)
        is_deviation = (
            isinstance(init, (int, float))
            and not isinstance(init, bool)
            and math.isfinite(init)
            and init >= 0
        )
        if not (is_deviation or isinstance(init, (str, Tensor)) or callable(init)):
            raise DeclarationError(
                f"parameter {name!r}: init is a word, a standard deviation >= 0, a tensor or a function that "
                f"fills a tensor, got {init!r}."
            )
        if isinstance(init, Tensor) and init.is_floating_point() and not bool(init.isfinite().all()):
            raise DeclarationError(f"parameter {name!r}: its initial value has NaN or infinite entries.")
        if isinstance(init, Tensor) and not init.is_floating_point():
            raise DeclarationError(
                f"parameter {name!r}: its value has dtype {init.dtype}, which cannot be learned; call "
                ".float()."
            )
        self._declare(parameter)
        self._pending[name] = init
        try:
            if isinstance(init, Tensor):
                self._adopt_sizes(parameter, init)
            self._materialise()
        except Exception:
            self._forget(name)
            raise
        return parameter

    def constant(self, name: str, axes: str, value: Tensor | None = None) -> Constant:
        """Declare a fixed array, given here or with the observations of each call.

        Args:
            name: unique identifier in the graph.
            axes: names separated by spaces.
            value: shape ``(*axes)``; saved and moved with the module. None: passed to each call, with or
                without a batch axis.

        Raises:
            DeclarationError: for a name in use, or a value that does not fit the axes.
        """
        names, _ = parse_axes("constant", name, axes)
        constant = Constant(name, names)
        if value is not None:
            try:
                value = torch.as_tensor(value).detach().clone()
            except (TypeError, ValueError, RuntimeError) as error:
                raise DeclarationError(
                    f"constant {name!r}: its value cannot be made a tensor ({error})."
                ) from None
            if not value.is_floating_point():
                raise DeclarationError(
                    f"constant {name!r}: its value has dtype {value.dtype}; call .float()."
                )
            if not bool(value.isfinite().all()):
                raise DeclarationError(f"constant {name!r}: its value has NaN or infinite entries.")
        self._declare(constant)
        if value is not None:
            try:
                self._adopt_sizes(constant, value)
            except DeclarationError:
                self._forget(name)
                raise
            self.register_buffer(name, value)
        return constant

    def index(self, name: str, axis: str, numbers: Tensor | Sequence[int], into: str) -> Index:
        """Declare an index: integers along one axis that refer to entries of another, such as edge lists.

        Factors gather entries with it: ``s["src[e] v"]`` is row ``src[e]`` of ``s`` for each edge e.
        Like sizes, the integers are part of the declaration and not of ``state_dict()``.

        Args:
            name: unique identifier in the graph.
            axis: axis of the integers, such as ``"edge"``.
            numbers: integers >= 0, shape ``(axis,)``; may be empty or contain repeats.
            into: axis whose entries the integers refer to, such as ``"node"``.

        Raises:
            DeclarationError: for a name in use, or numbers that are fractional, negative, beyond the size of
                ``into``, or that do not fit the axis.

        Example:
            >>> import torch, unn
            >>> from factors import Multilinear
            >>> g = unn.FactorGraph("triangle", node=3)
            >>> s = g.variable("s", "node", unn.SignedEntropy())
            >>> src = g.index("src", "edge", [0, 1, 2], into="node")
            >>> dst = g.index("dst", "edge", [1, 2, 0], into="node")
            >>> J = g.parameter("J", "edge", init="ones")
            >>> g.factor(Multilinear(J["e"], s["src[e]"], s["dst[e]"]))
            -sum J[e] s[src[e]] s[dst[e]]
            >>> g.energy({"s": torch.tensor([[1.0, 1.0, -1.0]])}, by_factor=True)["Multilinear(J, s, s)"]
            tensor([1.], grad_fn=<NegBackward0>)
        """
        (names, _), (target, _) = parse_axes("index", name, axis), parse_axes("index", name, into)
        if len(names) != 1 or len(target) != 1:
            raise DeclarationError(
                f"index {name!r} lies along one axis and numbers the entries of one axis, got {axis!r} "
                f"into {into!r}."
            )
        index = Index(name, names, _index_numbers(name, numbers), target[0])
        self._declare(index)
        try:
            self._adopt_sizes(index, index.numbers)
        except DeclarationError:
            self._forget(name)
            raise
        return index

    def relate_sizes(self, relation: str) -> None:
        """Declare that the size of one axis determines that of another.

        Sizes and ``lengths`` of ragged batches that are given for one axis then determine those of the other.

        Args:
            relation: equation such as ``"step = word - 1"``, ``"a = b + 2"`` or ``"a = b"`` between axes of
                declared arrays.

        Raises:
            DeclarationError: for an unknown axis, text of another form, or a relation that contradicts the
                sizes or the factors declared so far.

        Example:
            >>> import unn
            >>> g = unn.FactorGraph("tagger", word=5)
            >>> X = g.variable("X", "word", unn.SquaredNorm())
            >>> T = g.parameter("T", "step", init="ones")
            >>> g.relate_sizes("step = word - 1")
            >>> g.T
            Parameter containing:
            tensor([1., 1., 1., 1.], requires_grad=True)
        """
        parsed = SizeRelation.parse(relation)
        axes = dict.fromkeys(axis for array in self.arrays.values() for axis in array.axes)
        for axis in (parsed.axis, parsed.other):
            if axis not in axes:
                raise DeclarationError(
                    f"relation '{parsed}': graph {self.name!r}: {unknown('axis', axis, axes)}"
                )
        try:
            self._table.add_relation(parsed)
            _ = self._table.static
        except DeclarationError:
            self._table = self._rebuilt_table()
            raise
        self._relations.append(parsed)
        self._memo.clear()
        self._materialise()

    def factor(self, factor: F) -> F:
        """Add a factor and return it.

        Raises:
            DeclarationError: if it refers to arrays of another graph, or ties axes of different sizes.
        """
        if not isinstance(factor, Factor):
            raise DeclarationError(
                f"factor() takes a factor such as Multilinear(H['h'], W['h x'], X['x']), got {factor!r}."
            )
        for reference in factor.references:
            declared = self.arrays.get(reference.array.name)
            if declared is not reference.array:
                name = reference.array.name
                problem = (
                    "belongs to another graph"
                    if declared is None
                    else "is not the one declared in this graph"
                )
                remedy = suggest(name, self.arrays)
                if declared is not None:
                    remedy = f" Use the array of this graph, g[{name!r}]."
                raise DeclarationError(
                    f"factor {factor.name!r} refers to {reference.array.kind} {name!r}, which {problem} "
                    f"({self.name!r}).{remedy}"
                )
            if isinstance(factor, EnergyFactor) and isinstance(declared, Variable) and declared.bounds:
                raise DeclarationError(
                    f"factor {factor.name!r} has an energy, which does not hold the bounds of the entries of "
                    f"variable {declared.name!r}; declare a variable for each of its domains."
                )
        factor.indices = self._indices_of(factor)
        if self.factors.get(factor.name) is factor:
            raise DeclarationError(f"factor {factor.name!r} was added already.")
        if factor.name in self.arrays:
            raise DeclarationError(
                f"the name {factor.name!r} of a factor is in use by a {self.arrays[factor.name].kind}; "
                "choose another."
            )
        module_name = factor.name.replace(".", "_")
        if factor.module is not None and hasattr(self, module_name):
            raise DeclarationError(
                f"factor {factor.name!r}: its module cannot be stored under this name, which is in use; "
                "choose another."
            )
        base = factor.name
        while factor.name in self.factors:
            self._name_counts[base] = self._name_counts.get(base, 1) + 1
            factor.name = f"{base}#{self._name_counts[base]}"
        try:
            self._table.add_factor(factor)
            _ = self._table.static if self._table.has_rules else None
        except DeclarationError:
            self._table = self._rebuilt_table()
            raise
        if self._table.has_rules:
            factor.split_sizes = self._table.split_letters(factor)
        # the same mapping, since later declarations may decide further sizes
        factor.axis_sizes = self.sizes
        self.factors[factor.name] = factor
        self._memo.clear()
        self._materialise()
        if factor.module is not None:
            self.add_module(factor.name.replace(".", "_"), factor.module)
        return factor

    def remove_factors(self, names: Collection[str]) -> None:
        """Remove factors and fusions of them; known sizes stay known, and axes tied by a letter stay tied.

        Args:
            names: names of factors of this graph.

        Raises:
            DeclarationError: for a name of no factor.
        """
        for name in names:
            if name not in self.factors:
                raise DeclarationError(f"graph {self.name!r}: " + unknown("factor", name, self.factors))
        axes = [axis for array in self.arrays.values() for axis in array.axes]
        static = {axis: self._table.static.get(self._table.root(axis)) for axis in axes}
        tied = [[axis for axis in group if axis in static] for group in self._table.tied_groups()]
        self._fusions = [
            fusion
            for fusion in self._fusions
            if not any(name in replaced for replaced in fusion.replaces.values() for name in names)
        ]
        for name in names:
            if self.factors.pop(name).module is not None:
                delattr(self, name.replace(".", "_"))
        self.sizes.update({axis: size for axis, size in static.items() if size is not None})
        self._table = self._rebuilt_table()
        for group in tied:
            for other in group[1:]:
                if self._table.root(group[0]) != self._table.root(other):
                    self.relate_sizes(f"{group[0]} = {other}")
        self._memo.clear()

    def fuse(self, fusion: Fusion) -> None:
        """Let engines compute the messages of some factors at once.

        Args:
            fusion: rule that computes them, with the names of variables and factors of this graph.

        Raises:
            DeclarationError: for an object that is not a fusion, unknown names, factors that do not touch the
                variable that they are listed for, or variables that an earlier fusion lists.
        """
        check_fusions(self.name, self.variables, self.factors, [*self._fusions, fusion])
        self._fusions.append(fusion)
        self._memo.clear()

    # -- queries ---------------------------------------------------------------------------------------------

    @property
    def fusions(self) -> tuple[Fusion, ...]:
        """The rules that compute the messages of several factors at once, in the order of declaration."""
        return tuple(self._fusions)

    @property
    def variables(self) -> dict[str, Variable]:
        """The variables by name, in the order of declaration."""
        return self._variables

    @property
    def energy_factors(self) -> list[EnergyFactor]:
        """The factors with an energy, in the order of declaration."""
        return [factor for factor in self.factors.values() if isinstance(factor, EnergyFactor)]

    @property
    def constraints(self) -> list[Constraint]:
        """The conditions on values, in the order of declaration."""
        return [factor for factor in self.factors.values() if isinstance(factor, Constraint)]

    @property
    def size_table(self) -> SizeTable:
        """The unified sizes of all axes."""
        return self._table

    def variable_named(self, name: str) -> Variable:
        """The variable with this name.

        Raises:
            DeclarationError: if no variable has this name; the message suggests the closest one.
        """
        array = self.arrays.get(name) if isinstance(name, str) else None
        if not isinstance(array, Variable):
            if array is not None:
                raise DeclarationError(
                    f"{name!r} is a {array.kind}, not a variable.{suggest('', self.variables)}"
                )
            raise DeclarationError(f"graph {self.name!r}: " + unknown("variable", name, self.variables))
        return array

    def __getstate__(self) -> dict[str, object]:
        """The state without the cache of derived results, which is recomputed."""
        return {**self.__dict__, "_memo": {}}

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name in self.__dict__.get("_variables", ()):
                raise AttributeError(f"variables are looked up by name: g[{name!r}], not g.{name}.") from None
            raise

    def __repr__(self) -> str:
        names = ", ".join(self.variables)
        count = sum(p.numel() for p in nn.Module.parameters(self))
        waiting = f", {len(self._pending)} of unknown size" if self._pending else ""
        return (
            f"{type(self).__name__} {self.name!r}: {len(self.variables)} "
            f"{_plural('variable', len(self.variables))} ({names}), {len(self.factors)} "
            f"{_plural('factor', len(self.factors))}, {count} {_plural('parameter', count)}{waiting}"
        )

    def memo(self, key: Hashable, make: Callable[[], M]) -> M:
        """Return the cached result of ``make``, computed once until the declaration changes.

        Args:
            key: cache key, a tuple that begins with the name of the calling module.
            make: computes the result from the declaration.
        """
        if key not in self._memo:
            self._memo[key] = make()
        return cast(M, self._memo[key])

    # -- internals -------------------------------------------------------------------------------------------

    def require_parameters(self) -> None:
        """Check that every parameter has its sizes and values.

        Raises:
            DeclarationError: names the first parameter and the axes whose sizes are missing.
        """
        for name in self._pending:
            array = self.arrays[name]
            shape = self.size_table.shape(array, self.size_table.static)
            missing = [axis for axis, size in zip(array.axes, shape, strict=True) if size is None]
            axis = missing[0]
            raise DeclarationError(
                f"parameter {name!r} has no size for axis {', '.join(map(repr, missing))}; give it with the "
                f"graph, FactorGraph({self.name!r}, {axis}=...), or tie it in a factor to an axis that has "
                "one."
            )

    def _declare(self, array: Array) -> None:
        name = array.name
        if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
            raise DeclarationError(f"{array.kind} needs a name that is a Python identifier, got {name!r}.")
        if name in self.arrays:
            raise DeclarationError(
                f"the name {name!r} is in use by a {self.arrays[name].kind} of graph {self.name!r}; choose "
                "another."
            )
        if not isinstance(array, Variable) and hasattr(self, name):
            raise DeclarationError(
                f"{array.kind} {name!r}: this name is an attribute of torch modules; choose another."
            )
        self.arrays[name] = array
        if isinstance(array, Variable):
            self._variables[name] = array
        self._table.add_array(array)
        self._memo.clear()

    def _indices_of(self, factor: Factor) -> Indices:
        """Indices used by the references of a factor.

        Raises:
            DeclarationError: for an unknown name, the name of another kind of array, or a factor that
                does not support indices.
        """
        indices: dict[str, Index] = {}
        for reference in factor.references:
            for name in reference.pattern.indices:
                array = self.arrays.get(name)
                if not isinstance(array, Index):
                    known = [other for other, declared in self.arrays.items() if isinstance(declared, Index)]
                    what = (
                        unknown("index", name, known)
                        if array is None
                        else f"{name!r} is a {array.kind}, not an index.{suggest('', known)}"
                    )
                    into = reference.array.axes[0]
                    remedy = f"declare it with g.index({name!r}, 'edge', numbers, into={into!r})."
                    raise DeclarationError(f"factor {factor.name!r}, {reference}: {what} Or {remedy}")
                if not factor.handles_indices:
                    raise DeclarationError(
                        f"factor {factor.name!r}: {type(factor).__name__} cannot look up entries in an "
                        f"index, as {reference} does; "
                        "use a Multilinear factor, or a class with handles_indices = True."
                    )
                indices[name] = array
        return indices

    def _adopt_sizes(self, array: Array, value: Tensor) -> None:
        """Set static sizes from the value given in a declaration."""
        problem = ""
        if value.ndim != len(array.axes):
            problem = (
                f"has {len(array.axes)} axes ({' '.join(array.axes)}), but its value has shape "
                f"{tuple(value.shape)}"
            )
        seen: dict[str, int] = {}
        for axis, size in zip(array.axes, value.shape, strict=False):
            root = self._table.root(axis)
            known = seen.setdefault(root, self._table.static.get(root, size))
            if known is not None and known != size and not problem:
                problem = (
                    f"has size {known} along axis {axis!r}, but its value has shape {tuple(value.shape)}"
                )
        if problem:
            raise DeclarationError(f"{array.kind} {array.name!r} {problem}.")
        before = dict(self.sizes)
        self.sizes.update(zip(array.axes, value.shape, strict=True))
        try:
            self._table = self._rebuilt_table()
            _ = self._table.static
        except DeclarationError:
            # in place: factors share the mapping
            self.sizes.clear()
            self.sizes.update(before)
            raise

    def _rebuilt_table(self) -> SizeTable:
        return SizeTable.of(self.arrays.values(), self.factors.values(), self.sizes, self._relations)

    def _forget(self, name: str) -> None:
        """Undo the declaration of an array that no factor refers to yet."""
        del self.arrays[name]
        self._pending.pop(name, None)
        self._table = self._rebuilt_table()
        self._memo.clear()

    def _materialise(self) -> None:
        """Create the pending parameters whose sizes have become known."""
        if not self._pending:
            return
        table = self._table
        for name, init in list(self._pending.items()):
            shape = table.shape(self.arrays[name], table.static)
            if None not in shape:
                self.register_parameter(
                    name, nn.Parameter(_initial(name, init, [size or 0 for size in shape]))
                )
                del self._pending[name]

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        for name in self._pending:
            if prefix + name in state_dict:
                axes = [
                    axis
                    for axis in self.arrays[name].axes
                    if self._table.static.get(self._table.root(axis)) is None
                ]
                error_msgs.append(
                    f"parameter {name!r} of graph {self.name!r} has no size yet; give the sizes of its axes "
                    f"in the declaration before loading: FactorGraph({self.name!r}, "
                    f"{', '.join(f'{axis}=...' for axis in axes)})."
                )
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def fixed_values(self) -> dict[str, Tensor]:
        """The parameters and the constants with declared values, by name.

        Raises:
            DeclarationError: for a parameter that a hook of ``torch.nn.utils`` replaced.
        """
        values = {
            name: x
            for group in (self._parameters, self._buffers)
            for name, x in group.items()
            if x is not None
        }
        for name, array in self.arrays.items():
            if isinstance(array, Parameter) and name not in values and name not in self._pending:
                values[name] = self._parametrized(name)
        return values

    def _parametrized(self, name: str) -> Tensor:
        if not parametrize.is_parametrized(self, name):
            raise DeclarationError(
                f"parameter {name!r} is no longer a parameter of graph {self.name!r}: a hook, such as those "
                "of torch.nn.utils.prune and of the deprecated norms, would compute it when the graph is "
                "called as a module, which inference does not do. Use torch.nn.utils.parametrize instead."
            )
        x: Tensor = getattr(self, name)
        return x

    @overload
    def __getitem__(self, name: str) -> Array: ...
    @overload
    def __getitem__(self, name: tuple[str, ...]) -> tuple[Array, ...]: ...
    def __getitem__(self, name: str | tuple[str, ...]) -> Array | tuple[Array, ...]:
        """The declared array with this name."""
        if isinstance(name, tuple):
            return tuple(self[item] for item in name)
        if name not in self.arrays:
            raise DeclarationError(f"graph {self.name!r}: " + unknown("array", name, self.arrays))
        return self.arrays[name]


def _index_numbers(name: str, numbers: object) -> Tensor:
    """The numbers of an index as int64 on the CPU.

    Raises:
        DeclarationError: for numbers that are negative (names the first one) or not integers.
    """
    try:
        tensor = torch.as_tensor(numbers)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DeclarationError(f"index {name!r}: its numbers cannot be made a tensor ({error}).") from None
    if tensor.numel() == 0 and not isinstance(numbers, Tensor):
        tensor = tensor.long()
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise DeclarationError(
            f"index {name!r}: its numbers have dtype {tensor.dtype}, but must be integers; call .long()."
        )
    with torch.inference_mode(False):
        integers = tensor.detach().to("cpu", torch.int64, copy=True)
    if bool((integers < 0).any()):
        position = tuple((integers < 0).nonzero()[0].tolist())
        at = position[0] if len(position) == 1 else position
        raise DeclarationError(
            f"index {name!r}: entry {at} is {int(integers[position])}; numbers start at 0."
        )
    return integers


def _initial(name: str, init: Initializer, shape: list[int]) -> Tensor:
    if isinstance(init, Tensor):
        return init.detach().clone()
    try:
        values = torch.zeros(shape)
    except (RuntimeError, TypeError) as error:
        # torch raises TypeError for sizes above 2 ** 63
        raise DeclarationError(
            f"parameter {name!r}: its shape {tuple(shape)} takes {4 * math.prod(shape):,} bytes, which "
            "cannot be allocated."
        ) from error
    if isinstance(init, str):
        if init == "ones":
            values.fill_(1.0)
        elif init == "normal":
            values.normal_(0, 0.01)
        elif init == "fan_in":
            bound = 1 / math.sqrt(max(1, math.prod(shape[1:])))
            values.uniform_(-bound, bound)
    elif callable(init):
        with torch.no_grad():
            try:
                init(values)
            except Exception as error:
                raise DeclarationError(
                    f"parameter {name!r}: the function that fills it failed on a tensor of shape "
                    f"{tuple(shape)} ({type(error).__name__}: {error})."
                ) from error
    else:
        values.normal_(0, float(init))
    return values


def _plural(word: str, count: int) -> str:
    return word if count == 1 else word + "s"
