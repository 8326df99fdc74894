"""Contracts of constraints and of their penalties."""

from collections.abc import Callable

import torch
from torch import Tensor

import unn
from unn.testing import ConstraintContract, FactorContract


def constraint_contract(make: Callable, values: Callable) -> type:
    """The contract of the constraints of a graph; ``values(generator)`` satisfies them."""

    class Contract(ConstraintContract):
        def graph(self):
            return make()

        def satisfying(self, generator):
            return values(generator)

    return Contract


def penalty_contract(make: Callable) -> type:
    """The contract of the energies of the constraints of a graph, with learned weights."""

    class Contract(FactorContract):
        def graph(self):
            relaxed = unn.relax(make(), weight=0.7, learned=True)
            for parameter in relaxed.parameters():
                torch.nn.init.constant_(parameter, 0.3)
            return relaxed

    return Contract


def one_hot_values(categories: Tensor, count: int) -> Tensor:
    """One-hot values in float64."""
    return torch.nn.functional.one_hot(categories, count).double()
