"""Readings come in order of falling probability, each once."""

import itertools
import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unn.perception.readings import readings

logs = st.floats(-20, 0, allow_nan=False)


@given(st.data(), st.integers(0, 4), st.integers(1, 4))
@settings(max_examples=80)
def test_all_readings_come_once_in_order_of_falling_probability(data, nodes, values):
    table = [[data.draw(st.one_of(logs, st.just(-math.inf))) for _ in range(values)] for _ in range(nodes)]
    log_probabilities = torch.tensor(table).view(nodes, values)
    all_readings = [
        reading
        for reading in itertools.product(range(values), repeat=nodes)
        if all(table[node][value] > -math.inf for node, value in enumerate(reading))
    ]
    drawn = [tuple(reading.tolist()) for reading in readings(log_probabilities)]
    assert sorted(drawn) == sorted(all_readings)
    totals = [sum(table[node][value] for node, value in enumerate(reading)) for reading in drawn]
    assert all(one >= other - 1e-4 for one, other in itertools.pairwise(totals))


def test_many_nodes_need_no_list_of_all_readings():
    random = torch.Generator().manual_seed(0)
    log_probabilities = torch.randn(300, 10, generator=random).log_softmax(1)
    first = list(itertools.islice(readings(log_probabilities), 200))
    totals = [round(float(log_probabilities.gather(1, x[:, None]).double().sum()), 4) for x in first]
    assert totals == sorted(totals, reverse=True) and len({tuple(x.tolist()) for x in first}) == 200
