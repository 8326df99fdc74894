"""A try of the engine ``perception``: readings of each instance in turn, each with a search tree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ..engine import Attempt
from ..search.tree import DepthFirst
from ..solver.layout import Layout
from ..solver.propagation import Known, propagate
from ..solver.solve import violations_of


class ReadingSearch(Attempt):
    """Search trees of the readings of each instance, one reading at a time.

    A reading is left when its tree is refuted or cut off. With ``unique`` the tree is continued after an
    answer, and the reading is left as well when there is another one; the first answer of all readings is
    given where no reading has exactly one.

    Args:
        layout: candidates and groups.
        base: what is known of them without readings, propagated.
        choices: for each instance the candidates of its readings, in order.
        steps: number of nodes of each tree.
        unique: prefer readings with exactly one answer.
        generator: random number generator.
    """

    def __init__(
        self,
        layout: Layout,
        base: Known,
        choices: Sequence[Iterator[Tensor]],
        steps: int,
        unique: bool,
        generator: torch.Generator,
    ) -> None:
        self.layout, self.base, self.choices = layout, base, list(choices)
        self.steps, self.unique, self.generator = steps, unique, generator
        count = len(self.choices)
        values = layout.frame.unflatten(base.true.float() - base.false.float())
        # what is not proved to be the only answer is not given, and counts as no values
        self.shown = {name: torch.zeros_like(x) for name, x in values.items()} if unique else values
        self.answer = {name: x.clone() for name, x in self.shown.items()}
        self.first = {name: x.clone() for name, x in self.shown.items()}
        self.is_answered = torch.zeros(count, dtype=torch.bool)
        self.has_first = torch.zeros(count, dtype=torch.bool)
        self.is_proved = torch.zeros(count, dtype=torch.bool)
        self.waiting = torch.arange(count)
        # the instances of the tree
        self.searched = self.waiting[:0]
        self.tree: DepthFirst | None = None

    @torch.no_grad()
    def advance(self) -> dict[str, Tensor] | None:
        if self.tree is None:
            self._plant()
        if self.tree is None:
            return self._fall_back()
        values = self.tree.advance()
        if values is None:
            # not decided within the steps
            self._leave(torch.ones(len(self.searched), dtype=torch.bool))
        elif self.unique:
            self._count_answers(self.tree, values)
        else:
            for name, x in values.items():
                self.shown[name][self.searched] = x
            self._leave(self.tree.refuted())
        return self._given()

    def keep(self, rows: Tensor) -> None:
        place = torch.full((len(self.choices),), -1)
        place[rows] = torch.arange(len(rows))
        self.base = self.base.select(rows)
        self.choices = [self.choices[row] for row in rows.tolist()]
        for values in (self.shown, self.answer, self.first):
            for name in values:
                values[name] = values[name][rows]
        self.is_answered, self.has_first = self.is_answered[rows], self.has_first[rows]
        self.is_proved = self.is_proved[rows]
        self.waiting = place[self.waiting]
        self.waiting = self.waiting[self.waiting >= 0]
        self._prune(place[self.searched] >= 0)
        self.searched = place[self.searched]

    def _count_answers(self, tree: DepthFirst, values: dict[str, Tensor]) -> None:
        """Keep first answers, leave readings with a second one, and give those that are proved the only
        ones."""
        valid = tree.is_complete & (violations_of(self.layout.graph, {}, values) == 0)
        # a tree may stand at the same answer twice
        other = torch.stack(
            [(x != self.answer[name][self.searched]).flatten(1).any(1) for name, x in values.items()]
        )
        second = valid & self.is_answered[self.searched] & other.any(0)
        new = valid & ~self.is_answered[self.searched]
        rows = self.searched[new]
        for name, x in values.items():
            self.answer[name][rows] = x[new]
        self.is_answered[rows] = True
        refuted = tree.refuted()
        proved = self.searched[refuted & self.is_answered[self.searched]]
        for name, x in self.answer.items():
            self.shown[name][proved] = x[proved]
        self.is_proved[proved] = True
        self._leave(second | refuted)

    def _leave(self, leaves: Tensor) -> None:
        """Leave the readings of some of the searched instances, which then wait for the next."""
        rows = self.searched[leaves]
        new = rows[self.is_answered[rows] & ~self.has_first[rows]]
        for name, x in self.answer.items():
            self.first[name][new] = x[new]
        self.has_first[new] = True
        self.is_answered[rows] = False
        self.waiting = torch.cat([self.waiting, rows])
        self._prune(~leaves)

    def _prune(self, kept: Tensor) -> None:
        self.searched = self.searched[kept]
        if self.tree is not None and not bool(kept.all()):
            self.tree.keep(kept.nonzero()[:, 0])
        if not len(self.searched):
            self.tree = None

    def _fall_back(self) -> dict[str, Tensor] | None:
        """Give the first answers of the instances without a proved one, once."""
        rows = (self.has_first & ~self.is_proved).nonzero()[:, 0]
        if not len(rows):
            return None
        for name, x in self.first.items():
            self.shown[name][rows] = x[rows]
        self.is_proved[rows] = True
        return self._given()

    def _given(self) -> dict[str, Tensor]:
        """Copies of the present answers, which later steps do not change."""
        return {name: x.clone() for name, x in self.shown.items()}

    def _plant(self) -> None:
        """Begin a tree for the next possible reading of each instance that waits for one."""
        planted: list[Known] = []
        instances: list[Tensor] = []
        waiting = self.waiting
        while len(waiting):
            chosen = [(row, next(self.choices[row], None)) for row in waiting.tolist()]
            readings = [(row, candidates) for row, candidates in chosen if candidates is not None]
            waiting = torch.tensor([row for row, _ in readings], dtype=torch.long)
            if not readings:
                break
            true = torch.zeros(len(readings), self.layout.candidates, dtype=torch.bool)
            for place, (_, candidates) in enumerate(readings):
                true[place, candidates] = True
            base = self.base.select(waiting)
            known, impossible = propagate(self.layout, Known(base.true | true, base.false))
            possible = impossible < 0
            planted.append(known.select(possible))
            instances.append(waiting[possible])
            waiting = waiting[~possible]
        self.waiting = waiting
        if any(len(rows) for rows in instances):
            self.searched = torch.cat(instances)
            known = Known(torch.cat([k.true for k in planted]), torch.cat([k.false for k in planted]))
            self.tree = DepthFirst(self.layout, known, self.steps, 1, self.generator)
            self.tree.ends = self.ends
