"""Trees of products, and the sweeps over them: stars in halves, and nothing lost where nothing is scaled."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.table_models import log_weights, probabilities_of, random_model

from unn.exact import inference
from unn.exact.downward import downward
from unn.exact.halving import halve
from unn.exact.plan import compile_plan
from unn.exact.reduction import reduce
from unn.exact.sweeps import upward
from unn.exact.tables import Family, TableEvidence, TableModel, linear
from unn.exact.tree import search_tree

BATCH = 100


def star(leaves: int, states: int = 3) -> list[tuple[int, ...]]:
    """Scopes of a centre, variable 0, with a table for each of its neighbours."""
    return [(0, leaf) for leaf in range(1, leaves + 1)]


def leaves_under(tree, node):
    if node < tree.leaves:
        return [node]
    return [leaf for child in tree.children[node] for leaf in leaves_under(tree, child)]


@given(st.integers(0, 10**6))
@settings(deadline=None)
def test_halving_changes_no_scope_no_cost_and_loses_no_table(seed):
    generator = torch.Generator().manual_seed(seed)
    variables = int(torch.randint(2, 7, (), generator=generator))
    scopes = [
        tuple(torch.randperm(variables, generator=generator)[: 1 + k % 3].tolist())
        for k in range(3 * variables)
    ]
    tree = search_tree(scopes, [2] * variables, 0.1, 3, seed)
    cost, roots = tree.log_cost(), list(tree.roots)
    halve(tree, [k % 3 for k in range(len(scopes))])
    assert tree.roots == roots
    assert tree.log_cost() == pytest.approx(cost)
    assert sorted(leaf for root in roots for leaf in leaves_under(tree, root)) == list(range(len(scopes)))
    for node, pair in tree.children.items():
        inside = set(leaves_under(tree, node))
        outside = {v for leaf in range(len(scopes)) if leaf not in inside for v in scopes[leaf]}
        within = {v for leaf in inside for v in scopes[leaf]}
        assert tree.scopes[node] == sum(1 << v for v in within & outside)
        assert all(child < tree.leaves or child in tree.children for child in pair)


@pytest.mark.parametrize("leaves", [3, 8, 16, 21, 64])
def test_the_messages_of_a_star_are_multiplied_in_halves_without_gathering_any(leaves):
    scopes = [*star(leaves), *((leaf,) for leaf in range(1, leaves + 1))]
    kinds = [0] * leaves + [1] * leaves
    tree = search_tree(scopes, [3] * (leaves + 1), 0.1, 3, batch=BATCH)
    halve(tree, kinds)
    plan = compile_plan(tree, [scopes[:leaves], scopes[leaves:]], [3] * (leaves + 1), BATCH)
    # one product with the table of each neighbour, then the messages
    first, *rest = plan.products
    assert len(first.variables) == leaves
    assert len(rest) <= 2 * leaves.bit_length()
    for products in rest:
        for source in (products.left, products.right):
            assert source.inverse is None
            assert all(isinstance(rows, slice) for rows in source.rows)


def steep_model(generator, scopes, states, log_range):
    """Tables whose smallest entries are a given factor below the largest ones, in all."""
    families = []
    for scope in scopes:
        shape = (1, 1, *(states[v] for v in scope))
        logs = torch.rand(shape, generator=generator).double()
        logs = (logs - logs.min()) / (logs.max() - logs.min()).clamp(min=1e-9)
        families.append(Family(torch.tensor([scope]), (logs - 1) * log_range / len(scopes)))
    return TableModel(tuple(states), tuple(families), tuple(f"x{v}" for v in range(len(states))), "steep")


@pytest.mark.parametrize("rows", [1, BATCH])
@pytest.mark.parametrize("log_range", [10.0, 490.0, 510.0, 3000.0])
@given(seed=st.integers(0, 10**6))
@settings(max_examples=5, deadline=None)
def test_answers_are_those_of_enumeration_on_both_sides_of_where_products_are_scaled(seed, log_range, rows):
    generator = torch.Generator().manual_seed(seed)
    states = [2, 3, 2, 3, 2, 2]
    scopes = [*star(5), *((0,) for _ in range(4)), (1, 2), (2, 3), (3,), (5,)]
    model = steep_model(generator, scopes, states, log_range)
    evidence = TableEvidence(torch.full((rows, len(states)), -1))
    evidence.values[1::2, 2] = 1
    total, probabilities, entropy = probabilities_of(model, log_weights(model, evidence))
    answer = inference.marginals(model, evidence)
    torch.testing.assert_close(answer.log_partition, total, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(answer.probabilities, probabilities, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(inference.entropy(model, evidence), entropy, rtol=1e-7, atol=1e-9)


@given(st.integers(0, 10**6), st.booleans())
@settings(max_examples=15, deadline=None)
def test_sweeps_with_and_without_scaling_have_the_same_marginals_and_derivatives(seed, is_batch):
    generator = torch.Generator().manual_seed(seed)
    states = [2, 3, 2, 3, 2, 2, 2]
    model = random_model(generator, states, [*star(4), (0,), (4, 5), (5, 6), (1, 2)], scale=3.0)
    values = torch.full((BATCH if is_batch else 1, len(states)), -1)
    values[1::2, 1] = 2
    reduced = reduce(model, TableEvidence(values), inference.ExactOptions())
    plan = reduced.plan
    assert plan is not None
    tables, scale = linear(reduced.families)
    logs = [table.log().requires_grad_() for table in tables]
    tables = [x.exp() for x in logs]
    answers = []
    for log_range in (0.0, torch.inf):
        up = upward(plan, tables, scale, log_range)
        assert up.is_safe is (log_range == 0.0)
        down = downward(plan, up, set(range(plan.leaves)))
        assert bool(down.is_exact.all())
        beliefs = []
        for table, cotangent in zip(up.tables, down.cotangents, strict=True):
            if cotangent is not None and table.ndim > 2:
                belief = (table * cotangent).flatten(2)
                beliefs.append(belief / belief.sum(2, keepdim=True))
        gradients = torch.autograd.grad(up.log_partition.sum(), logs, create_graph=True)
        second = torch.autograd.grad(sum((g**2).sum() for g in gradients), logs, retain_graph=True)
        answers.append((up.log_partition, *beliefs, *gradients, *second))
    for one, other in zip(*answers, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_a_long_chain_of_steep_tables_has_the_marginals_of_logarithms():
    length, generator = 300, torch.Generator().manual_seed(0)
    logs = 20 * torch.randn(length - 1, 1, 2, 2, generator=generator).double()
    scopes = torch.stack([torch.arange(length - 1), torch.arange(1, length)], 1)
    model = TableModel((2,) * length, (Family(scopes, logs),), tuple(map(str, range(length))), "chain")
    forward, backward = [torch.zeros(2).double()], [torch.zeros(2).double()]
    for t in range(length - 1):
        forward.append((forward[-1][:, None] + logs[t, 0]).logsumexp(0))
        backward.append((backward[-1][None] + logs[length - 2 - t, 0]).logsumexp(1))
    expected = (torch.stack(forward) + torch.stack(backward[::-1])).softmax(1)
    answer = inference.marginals(model)
    torch.testing.assert_close(answer.log_partition, forward[-1].logsumexp(0)[None], rtol=1e-12, atol=0)
    torch.testing.assert_close(answer.probabilities[0], expected, rtol=1e-9, atol=1e-12)
