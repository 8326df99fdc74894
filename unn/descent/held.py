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
    updated: dict[str, Tensor | None] = {}
    for step in steps:
        before = updated.get(step.name)
        if step.nodes is None or (step.name in updated and before is None):
            updated[step.name] = None
        else:
            updated[step.name] = step.nodes if before is None else before | step.nodes
    return {
        name: (state.value(name), ~nodes)
        for name, nodes in updated.items()
        if nodes is not None and not bool(nodes.all())
    }
