"""Nodes of updated variables that no update changes: they stay at their initial values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from .plan import PlannedUpdate
from .state import State

Held = Mapping[str, tuple[Tensor, Tensor]]
"""Values by variable, shape ``(batch, *axes)``, and where they are held, ready to broadcast against them."""


def held_nodes(state: State, steps: Sequence[PlannedUpdate]) -> Held:
    """The present values of the nodes that no update changes, of variables of which others are updated.

    Args:
        state: before the updates; nodes of a variable without a value are held at zero.
        steps: all updates.
    """
    whole = {step.name for step in steps if step.nodes is None}
    updated: dict[str, Tensor] = {}
    for step in steps:
        if step.nodes is not None and step.name not in whole:
            updated[step.name] = step.nodes | updated.get(step.name, step.nodes)
    return {name: (state.value(name), ~nodes) for name, nodes in updated.items() if not bool(nodes.all())}
