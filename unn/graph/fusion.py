"""Fusions: rules that compute the messages of several factors at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from ..errors import DeclarationError, unknown
from .factor import Factor, Values


@dataclass(frozen=True, eq=False)
class InferredRows:
    """A variable of which few whole rows are unobserved.

    Attributes:
        observed: the value with 0 in the unobserved rows, shape ``(batch, *axes)``.
        rows: indices of the unobserved rows along the batch axis and the first axes, shape ``(rows,)`` each.
        initial: whether these rows have an initial value; otherwise they are 0 before the first update.
    """

    observed: Tensor
    rows: tuple[Tensor, ...]
    initial: bool


class FusedMessages(ABC):
    """The messages of a ``Fusion`` in one run, with the results that it keeps between updates."""

    @abstractmethod
    def to(
        self, target: str, values: Values, versions: Mapping[str, int], reused: Collection[str] | None
    ) -> Tensor | None:
        """The sum of the messages to a variable from all factors that ``Fusion.replaces`` lists for it.

        Args:
            target: name of a variable in which the energy of all factors of the graph is affine.
            values: values of arrays by name; a variable without a value is absent, which counts as 0.
            versions: the number of updates of each variable so far. Intermediate results from values with the
                same versions are still valid; arrays without a version never change.
            reused: names of the factors whose messages to the target will be the same at its next update, so
                that they are worth keeping; None if that is not known.

        Returns:
            Shape ``(batch, *axes)``, where batch may be 1, finite for finite values and sharing no memory
            with them; None if the sum is 0 because operands of all messages are absent.
        """

    def sum_static(self, targets: Iterable[str], values: Values, versions: Mapping[str, int]) -> None:
        """Compute what no update can change in the messages to some variables, to be shared by all branches.

        Args:
            targets: names of variables that ``Fusion.replaces`` lists.
            values: as of ``to``.
            versions: as of ``to``.
        """

    @abstractmethod
    def branch(self) -> FusedMessages:
        """The messages of a run that continues from other values, with what no update can change."""


class Fusion(ABC):
    """A rule that computes all messages of a set of factors to a set of variables at once.

    Engines use the fusions of a declaration (``Declaration.fuse``). The sum of the messages is the same up to
    rounding.
    """

    @property
    @abstractmethod
    def replaces(self) -> Mapping[str, Collection[str]]:
        """By name of a variable, the names of the factors whose messages to it are computed at once."""

    @abstractmethod
    def start(self, batch: int, inferred: Mapping[str, InferredRows]) -> FusedMessages:
        """The messages of a new run.

        Args:
            batch: number of batch elements.
            inferred: by name, the variables of which only few rows are inferred; the other rows are as
                observed.
        """


def check_fusions(
    graph: str, variables: Collection[str], factors: Mapping[str, Factor], fusions: Sequence[Fusion]
) -> None:
    """Check that fusions fit a graph and one another.

    Args:
        graph: name of the graph, for messages.
        variables: names of the variables.
        factors: the factors by name.
        fusions: rules to use together.

    Raises:
        DeclarationError: for an object that is not a fusion, unknown names, factors that do not touch the
            variable that they are listed for, or a variable that two fusions list.
    """
    fused: set[str] = set()
    for fusion in fusions:
        if not isinstance(fusion, Fusion):
            raise DeclarationError(
                f"graph {graph!r}: a fusion is an object of a subclass of unn.extending.Fusion, got "
                f"{fusion!r}."
            )
        for name, replaced in fusion.replaces.items():
            if name not in variables:
                raise DeclarationError(f"fusion: graph {graph!r}: " + unknown("variable", name, variables))
            if name in fused:
                raise DeclarationError(
                    f"fusion: graph {graph!r}: two fusions compute messages to variable {name!r}; use one."
                )
            fused.add(name)
            for factor in replaced:
                if factor not in factors:
                    raise DeclarationError(f"fusion: graph {graph!r}: " + unknown("factor", factor, factors))
                if name not in factors[factor].variables:
                    raise DeclarationError(
                        f"fusion: graph {graph!r}: factor {factor!r} does not touch variable {name!r}, so it "
                        "sends no message to it."
                    )
