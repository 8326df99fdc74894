"""Schedules: what is kept between updates is what a search of the whole schedule would keep, in linear
time."""

import time
from dataclasses import replace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.device_cases import make

import unn
from factors import Multilinear
from unn.descent.plan import Plan, PlannedUpdate
from unn.descent.schedule import mark_reuse
from unn.testing.strategies import graph_cases


def by_search(plan, steps, cyclic):
    """The definition: each message whose sources do not change before the next update of its variable."""
    marked = []
    for place, step in enumerate(steps):
        later = list(steps[place + 1 :]) + (list(steps[: place + 1]) if cyclic else [])
        names = [other.name for other in later]
        changed = {step.name, *names[: names.index(step.name)]} if step.name in names else None
        inlets = plan.changing[step.name] if changed is not None else []
        keys = frozenset(inlet.key for inlet in inlets if not changed & set(inlet.sources))
        marked.append(replace(step, reused=keys))
    return marked


@settings(max_examples=60, deadline=None)
@given(case=graph_cases(Multilinear, max_variables=5, max_factors=7), data=st.data(), cyclic=st.booleans())
def test_messages_are_kept_exactly_where_no_source_changes_before_the_next_update(case, data, cyclic):
    plan = Plan.of(case.graph, case.given)
    names = data.draw(st.lists(st.sampled_from(case.free), min_size=1, max_size=12))
    steps = [PlannedUpdate(name) for name in names]
    ours, expected = mark_reuse(plan, steps, cyclic), by_search(plan, steps, cyclic)
    assert [(step.name, step.reused) for step in ours] == [(step.name, step.reused) for step in expected]


def test_the_work_for_a_schedule_grows_linearly():
    plan = Plan.of(make("mlp forward").graph, ["X"])

    def seconds(count):
        start = time.process_time()
        assert (
            len(mark_reuse(plan, [PlannedUpdate("H"), PlannedUpdate("Y")] * count, cyclic=False)) == 2 * count
        )
        return time.process_time() - start

    seconds(100)
    # a quadratic search of 20,000 steps takes minutes; ten times the steps may take thirty times as long, not
    # a hundred
    assert min(seconds(10_000) for _ in range(3)) < 30 * max(min(seconds(1_000) for _ in range(3)), 1e-3)


def test_a_long_order_is_the_same_as_many_rounds():
    case = make("mlp forward")
    x = case.given["X"]
    with torch.no_grad():
        long = unn.infer(case.graph, {"X": x}, order=["H", "Y"] * 500, trace=False)
        rounds = unn.infer(case.graph, {"X": x}, order=["H", "Y"], iterations=500, trace=False)
    torch.testing.assert_close(long["Y"], rounds["Y"])
    assert long.schedule == rounds.schedule
