"""Feed-forward module in an undirected graph."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch import Tensor, nn

from unn import EnergyFactor, Regularizer
from unn.errors import DeclarationError
from unn.graph.arrays import Array, Constant, Reference, Variable
from unn.graph.factor import Values
from unn.regularizers.base import batch_sum

_LINEAR = (
    nn.Linear,
    nn.Identity,
    nn.Flatten,
    nn.Unflatten,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
    nn.AvgPool1d,
    nn.AvgPool2d,
    nn.MaxPool1d,
    nn.MaxPool2d,
    nn.ReLU,
    nn.LeakyReLU,
    nn.ELU,
    nn.GELU,
    nn.SiLU,
    nn.Softplus,
    nn.Hardtanh,
)
_BOUNDED = (nn.Tanh, nn.Sigmoid, nn.Hardsigmoid, nn.Softsign)


class Directed(EnergyFactor):
    """E = Psi*(f(parents)) - <child, f(parents)>, with Psi the child's regularizer and f any module.

    Together with Psi(child) this is the Fenchel-Young divergence of the child from mirror(f(parents)):
    nonnegative, and zero exactly if the child is the feed-forward result. It generalises the distance of the
    undirected-network paper, Section 2 ("Feed-forward neural networks"), to every regularizer: with
    ``SquaredNorm`` it is ||child - f(parents)||^2 / 2.

    The child's update is exact: mirror(f(parents) + messages of its other factors), or mirror(f(parents)) if
    there are none. Parents that are not observed are updated by the monotone inner solver.

    The factor alone is unbounded below; with Psi(child) it is nonnegative. Psi(child) counts once: if the
    child has a second factor, ``boundedness()`` uses ``degree``, which is available for modules made of
    linear maps and common activations.

    Args:
        module: maps the parents' values, shape ``(batch, *axes)`` each, to the child's pre-activation
            ``(batch, *axes)``. Its parameters become parameters of the graph.
        child: child variable.
        parents: variable or constant, or several in the order of the module's arguments.
        name: unique in the graph.
        handles_padding: the module ignores padding, which allows runs with ``lengths``, in which padded
            parents' values are 0. What the module returns for padded entries of the child counts in the
            energy by its Psi*(f) alone: a constant where the parents are given, as they must be if the child
            has padded entries.

    Raises:
        DeclarationError: if the child is among the parents, or something is neither a variable nor a
            constant.
    """

    def __init__(
        self,
        module: nn.Module,
        child: Variable,
        parents: Variable | Constant | Sequence[Variable | Constant],
        *,
        name: str | None = None,
        handles_padding: bool = False,
    ) -> None:
        if not isinstance(module, nn.Module):
            raise DeclarationError(
                f"Directed takes an nn.Module first, got {module!r}; wrap functions in one."
            )
        if not isinstance(parents, (Array, Sequence)):
            raise DeclarationError(
                f"Directed takes a variable or a list of variables as parents, got {parents!r}."
            )
        several = [parents] if isinstance(parents, Array) else list(parents)
        if not isinstance(child, Variable):
            raise DeclarationError(f"Directed takes variables as child and parents, got {child!r}.")
        for array in several:
            if not isinstance(array, (Variable, Constant)):
                raise DeclarationError(
                    f"Directed takes variables as child and parents, or constants as parents, got {array!r}."
                )
        if child in several:
            raise DeclarationError(f"Directed: variable {child.name!r} cannot be its own parent.")
        if not several:
            raise DeclarationError(f"Directed: variable {child.name!r} needs at least one parent.")
        super().__init__(*(_untied(array, k) for k, array in enumerate((child, *several))), name=name)
        self.module = module
        self.handles_padding = bool(handles_padding)
        self.child = child.name
        self.parents = tuple(parent.name for parent in several)
        self.completed_by = child.name
        self._regularizer: Regularizer = child.regularizer

    def energy(self, values: Values) -> Tensor:
        t = self._output(values)
        return self._regularizer.conjugate(t) - batch_sum(values[self.child] * t)

    def message(self, target: str, values: Values, shape: tuple[int, ...] | None = None) -> Tensor:
        if target == self.child:
            return self._output(values)
        return super().message(target, values, shape)

    def moved_by_padding(self, ragged: Collection[str]) -> Sequence[str]:
        return self.parents if self.child in ragged else ()

    def affine_in(self, target: str) -> bool:
        return target == self.child

    def degree(self, names: Collection[str]) -> int | None:
        """0 without the child (Fenchel-Young); with it, 1 plus the growth of the module in parents in
        ``names``."""
        if self.child not in names:
            return 0
        assert self.module is not None
        growth = growth_of(self.module) if set(self.parents) & set(names) else 0
        return None if growth is None else 1 + growth

    def formula(self) -> str:
        return f"Psi*(f) - <{self.child}, f>, f = {type(self.module).__name__}({', '.join(self.parents)})"

    def _output(self, values: Values) -> Tensor:
        assert self.module is not None
        t: Tensor = self.module(*(values[name] for name in self.parents))
        expected = values[self.child].shape if self.child in values else None
        if not isinstance(t, Tensor) or (expected is not None and t.shape != expected):
            got = tuple(t.shape) if isinstance(t, Tensor) else type(t).__name__
            raise DeclarationError(
                f"factor {self.name!r}: the module returned {got}, but its child {self.child!r} has shape "
                f"{tuple(expected or ())}; it must return the child's pre-activation."
            )
        return t


def _untied(array: Variable | Constant, position: int) -> Reference:
    """Reference all axes by distinct letters, so that this factor ties none of them."""
    return array[" ".join(f"x{position}_{k}" for k in range(len(array.axes)))]


def growth_of(module: nn.Module) -> int | None:
    """0 for a module with bounded outputs, 1 for one whose outputs grow at most linearly; None if unknown.

    Available for torch's own classes and ``Sequential`` of them, not for subclasses.
    """
    if type(module) is nn.Sequential:
        growths = [growth_of(part) for part in module]
        if None in growths:
            return None
        return 0 if 0 in growths else 1
    return 0 if type(module) in _BOUNDED else 1 if type(module) in _LINEAR else None
