"""The one loop of all runs: rounds are taken one at a time, repeated and stopped as the watch says."""

import pytest
import torch
from support.helpers import X, mlp

import unn
from factors import Multilinear
from unn.descent.collect import collect_evidence
from unn.descent.plan import Plan, PlannedUpdate
from unn.descent.rounds import Outcome, Watch, run_rounds
from unn.descent.state import State


class Scripted(Watch):
    """Notes what happens, and answers with the given outcomes."""

    def __init__(self, outcomes):
        self.outcomes = list(outcomes)
        self.events = []

    def begin(self, steps):
        self.events.append("begin")

    def record(self, step, old):
        self.events.append(step.name)

    def end(self, steps):
        self.events.append("end")
        return self.outcomes.pop(0)


def state():
    g = mlp()
    return State(Plan.of(g, ["X"]), collect_evidence(g, {"X": X}))


ROUND = [PlannedUpdate("H"), PlannedUpdate("Y")]
ONCE = ["H", "Y", "end"]


@pytest.mark.parametrize(
    ("outcomes", "events", "taken"),
    [
        ([Outcome.NEXT] * 3, ["begin", *ONCE] * 3, 3),
        ([Outcome.NEXT, Outcome.STOP], ["begin", *ONCE] * 2, 2),
        ([Outcome.REPEAT, Outcome.REPEAT, Outcome.STOP], ["begin", *ONCE * 3], 1),
        ([Outcome.REPEAT, Outcome.NEXT, Outcome.STOP], ["begin", *ONCE * 2, "begin", *ONCE], 2),
    ],
)
def test_rounds_follow_one_another_as_the_watch_says(outcomes, events, taken):
    drawn = []

    def rounds():
        for number in range(3):
            drawn.append(number)
            yield ROUND

    watch = Scripted(outcomes)
    run_rounds(state(), rounds(), watch)
    assert watch.events == events and len(drawn) == taken


def test_rounds_without_a_watch_are_those_of_infer():
    run = state()
    run_rounds(run, [ROUND] * 3)
    out = unn.infer(run.plan.graph, {"X": X}, order=["H", "Y"], iterations=3)
    assert torch.equal(run.values["Y"], out["Y"])


@pytest.mark.parametrize("trace", [True, False])
def test_terms_and_energies_go_on_where_batch_elements_diverge(trace):
    """An element that diverges keeps its terms; the energies of the others are the sums of their terms."""
    g = unn.FactorGraph("growing", x=2)
    s, x, y = (g.variable(name, "x", unn.SquaredNorm()) for name in "SXY")
    z = g.variable("Z", "x", unn.SignedEntropy())
    g.factor(Multilinear(s["i"], x["i"], y["i"]))
    g.factor(Multilinear(y["i"], z["i"]))
    given = {"S": torch.tensor([[0.5, 0.3], [1e20, 0.3]], dtype=torch.float64)}
    start = {"X": torch.ones(2, 2, dtype=torch.float64)}
    out = unn.infer(g, given, initial=start, order=["Y", "Z", "X"], iterations=9, terms=True, trace=trace)
    assert out.status is unn.Status.UNBOUNDED
    total = torch.stack(list(out.terms.values())).sum(0)
    assert len(total) == len(out.schedule) == 27 and total.isfinite().all()
    if trace:
        torch.testing.assert_close(out.energy[:, 0], total[:, 0], rtol=1e-12, atol=1e-12)
