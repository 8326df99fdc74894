"""Any differentiable energy as a factor."""

from __future__ import annotations

from collections.abc import Callable, Collection

from torch import Tensor, nn

from unn import EnergyFactor
from unn.errors import DeclarationError
from unn.graph.arrays import Reference
from unn.graph.factor import Values


class Implicit(EnergyFactor):
    """E = energy(operands), any differentiable function (undirected-network paper, Section 2, "Implicit
    layers").

    Messages come from autograd; blocks are minimised by the monotone inner solver, so the energy never
    increases.

    Args:
        energy: function of the values of the references' arrays in order, variables as ``(batch, *axes)``,
            parameters and constants as declared; returns ``(batch,)``. The parameters of an ``nn.Module``
            become parameters of the graph.
        references: the arrays; equal letters tie axes, as in any factor.
        bounded_below: the energy is bounded below in its variables; used by ``boundedness()``.
        name: unique in the graph.

    Example:
        ``Implicit(lambda x, y: (x - y).square().sum(1).cosh(), X["i"], Y["i"])``
    """

    def __init__(
        self,
        energy: Callable[..., Tensor],
        *references: Reference,
        bounded_below: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(*references, name=name)
        if not callable(energy):
            raise DeclarationError(f"Implicit takes a function first, got {energy!r}.")
        if not self.variables:
            raise DeclarationError(f"factor {self.name!r} has no variable among its references.")
        for reference in references:
            if not reference.pattern.plain:
                raise DeclarationError(
                    f"factor {self.name!r}: Implicit passes whole arrays, so {reference} cannot be shifted, "
                    "split or diagonal."
                )
        self.module = energy if isinstance(energy, nn.Module) else None
        self._energy = energy
        self._bounded_below = bounded_below

    def energy(self, values: Values) -> Tensor:
        arrays = [values[reference.array.name] for reference in self.references]
        result = self._energy(*arrays)
        batch = values[self.variables[0]].shape[0]
        if not isinstance(result, Tensor) or tuple(result.shape) != (batch,):
            got = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
            raise DeclarationError(
                f"factor {self.name!r}: the energy must have one value for each batch element, shape "
                f"({batch},), got {got}; sum over all axes but the first."
            )
        return result

    def degree(self, names: Collection[str]) -> int | None:
        return 0 if self._bounded_below or not set(names) & set(self.variables) else None

    def formula(self) -> str:
        called = "energy" if self.module is None else type(self.module).__name__
        return f"{getattr(self._energy, '__name__', called)}({', '.join(map(str, self.references))})"
