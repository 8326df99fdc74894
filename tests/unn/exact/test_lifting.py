"""Exchangeable variables are counted: answers equal those without lifting, and closed forms."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.table_models import random_model

from unn.exact import inference
from unn.exact.lifting import is_worth_lifting, lift
from unn.exact.options import ExactOptions
from unn.exact.tables import Family, TableEvidence, TableModel


def relations(people: int, places: int, seed: int, zeros: float = 0.0, states: int = 2) -> TableModel:
    """Every person with every place, by a table with a private variable; people also with one another."""
    generator = torch.Generator().manual_seed(seed)

    def table(*shape: int) -> torch.Tensor:
        logs = torch.randn(*shape, generator=generator, dtype=torch.float64)
        return torch.where(torch.rand(*shape, generator=generator) < zeros, -torch.inf, logs)

    pairs = [(i, people + j) for i in range(people) for j in range(places)]
    first = people + places
    three = torch.tensor([(first + k, i, j) for k, (i, j) in enumerate(pairs)])
    among = torch.tensor([(i, j) for i in range(people) for j in range(i)]).view(-1, 2)
    own = table(states, states)
    families = (
        Family(three, table(2, states, states).expand(1, len(pairs), 2, states, states).transpose(0, 1)),
        Family(among, (own + own.T).expand(1, len(among), states, states).transpose(0, 1)),
        Family(torch.arange(people)[:, None], table(states).expand(people, 1, states)),
        Family(torch.arange(people, first)[:, None], table(states).expand(places, 1, states)),
        Family(torch.arange(first, first + len(pairs))[:, None], table(2).expand(len(pairs), 1, 2)),
    )
    sizes = (states,) * first + (2,) * len(pairs)
    return TableModel(sizes, families, tuple(f"v{k}" for k in range(len(sizes))), "relations")


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    st.integers(2, 4), st.integers(1, 3), st.integers(0, 10**6), st.sampled_from([0.0, 0.15]), st.booleans()
)
def test_lifted_marginals_equal_those_of_a_contraction(people, places, seed, zeros, observed):
    model = relations(people, places, seed, zeros)
    values = torch.full((2, len(model.states)), -1)
    if observed:
        values[0, 0], values[1, people] = 1, 0
        values[1, -1] = 1
    evidence = TableEvidence(values)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inference, "is_worth_lifting", lambda model: False)
        expected = inference.marginals(model, evidence)
    answer = inference._lifted_marginals(model, evidence, ExactOptions())
    if answer is None:
        # one person and what zeros or evidence leave may have no symmetry
        return
    torch.testing.assert_close(answer.log_partition, expected.log_partition, atol=1e-9, rtol=1e-9)
    possible = expected.log_partition > -torch.inf
    torch.testing.assert_close(
        answer.probabilities[possible], expected.probabilities[possible], atol=1e-9, rtol=0
    )


def test_dense_relations_of_three_states_are_lifted():
    model = relations(5, 3, 0, states=3)
    lifted = lift(model.families, model.states, "relations")
    assert lifted is not None
    assert sorted(map(len, lifted.classes)) == [3, 5]
    # 21 histograms of five people and 10 of three places, over three states
    assert sorted(lifted.model.states) == [10, 21]


def test_spins_that_are_all_coupled_have_the_log_partition_of_their_magnetisation():
    n, coupling, field = 60, 0.02, 0.1
    pairs = torch.tensor([(i, j) for i in range(n) for j in range(i)])
    spin = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    families = (
        Family(pairs, (coupling * spin[:, None] * spin).expand(len(pairs), 1, 2, 2)),
        Family(torch.arange(n)[:, None], (field * spin).expand(n, 1, 2)),
    )
    model = TableModel((2,) * n, families, tuple(map(str, range(n))), "spins")
    assert is_worth_lifting(model)
    ups = np.arange(n + 1)
    magnetisation = 2 * ups - n
    logs = np.array([math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) for k in ups])
    logs += coupling * (magnetisation**2 - n) / 2 + field * magnetisation
    total = np.logaddexp.reduce(logs)
    answer = inference.marginals(model)
    assert float(answer.log_partition) == pytest.approx(total, rel=1e-12)
    expected = float((np.exp(logs - total) * ups).sum() / n)
    torch.testing.assert_close(answer.probabilities[0, :, 1], torch.full((n,), expected).double())
    # one spin is given: the others are a class of one less
    up = TableEvidence.of(model, {7: 1})
    probability = inference.log_partition(model, up) - answer.log_partition
    assert float(probability.exp()) == pytest.approx(expected, rel=1e-9)


def test_models_without_symmetry_or_with_gradients_are_not_lifted():
    generator = torch.Generator().manual_seed(0)
    pairs = [(i, j) for i in range(20) for j in range(i)]
    dense = random_model(generator, [2] * 20, pairs)
    assert not is_worth_lifting(dense)
    chain = random_model(generator, [2] * 20, [(i, i + 1) for i in range(19)])
    assert not is_worth_lifting(chain)
    assert lift(chain.families, chain.states, "chain") is None
    table = torch.randn(2, 2, generator=generator, dtype=torch.float64).requires_grad_()
    same = (table + table.T).expand(len(pairs), 1, 2, 2)
    model = TableModel((2,) * 20, (Family(torch.tensor(pairs), same),), dense.names, "learned")
    assert not is_worth_lifting(model)


def test_classes_that_are_connected_in_part_are_not_lifted():
    # a ring of equal tables: one class, not complete
    ring = torch.tensor([(k, (k + 1) % 6) for k in range(6)])
    table = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64).expand(6, 1, 2, 2)
    assert lift([Family(ring, table)], [2] * 6, "ring") is None


def test_tables_that_are_not_symmetric_within_a_class_are_not_lifted():
    pairs = torch.tensor([(i, j) for i in range(4) for j in range(i)])
    table = torch.tensor([[1.0, 0.5], [0.0, 1.0]], dtype=torch.float64).expand(len(pairs), 1, 2, 2)
    assert lift([Family(pairs, table)], [2] * 4, "order") is None


def test_the_cost_of_a_lifted_model_is_that_of_its_histograms():
    model = relations(30, 20, 0)
    assert is_worth_lifting(model)
    cost = inference.cost(model)
    assert cost.variables == 2
    assert cost.log_largest == pytest.approx(math.log2(31 * 21))
