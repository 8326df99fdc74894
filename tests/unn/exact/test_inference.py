"""Queries of table models agree with enumeration, whatever the scales, zeros, batches and evidence."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.table_models import (
    enumerate_states,
    log_weights,
    models,
    models_with_evidence,
    probabilities_of,
    random_model,
)

from unn.errors import ArgumentError, InferenceError, ObservationError
from unn.exact import inference
from unn.exact.conditioning import conditions_of
from unn.exact.files import ModelFile
from unn.exact.options import ExactOptions
from unn.exact.reduction import reduce
from unn.exact.tables import Family, TableEvidence, TableModel

SMALL = ExactOptions(search_seconds=0.1, attempts=6)


def close(one, other, tolerance=1e-9):
    torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


@given(models_with_evidence())
def test_log_partition_probabilities_and_entropy_equal_those_of_enumeration(case):
    model, evidence = case
    logs = log_weights(model, evidence)
    total, probabilities, entropy = probabilities_of(model, logs)
    answer = inference.marginals(model, evidence, SMALL)
    close(answer.log_partition, total)
    close(answer.probabilities, probabilities)
    close(inference.entropy(model, evidence, SMALL), entropy, 1e-7)
    close(inference.log_partition(model, evidence, SMALL), total)


@given(models_with_evidence())
def test_the_derivative_of_the_entropy_is_that_of_enumeration(case):
    model, evidence = case
    families = tuple(replace(f, logs=f.logs.double().clone().requires_grad_()) for f in model.families)
    model = replace(model, families=families)
    logs = log_weights(model, evidence)
    possible = (logs > -torch.inf).any(1)
    if not families or not bool(possible.any()):
        return
    rows = logs[possible]
    there = rows > -torch.inf
    normalised = torch.where(there, rows, -1e30).log_softmax(1)
    expected = -(normalised.exp() * torch.where(there, normalised, 0)).sum()
    leaves = [f.logs for f in families]
    entropy = inference.entropy(model, evidence, SMALL)[possible].sum()
    if not entropy.requires_grad:
        return
    pairs = [torch.autograd.grad(x, leaves, allow_unused=True) for x in (entropy, expected)]
    for x, y, leaf in zip(*pairs, leaves, strict=True):
        own, theirs = (torch.zeros_like(leaf) if z is None else z for z in (x, y))
        finite = leaf.detach() > -torch.inf
        close(own[finite], theirs[finite], 1e-6)


@given(models_with_evidence())
def test_the_best_values_have_the_largest_weight(case):
    model, evidence = case
    logs = log_weights(model, evidence)
    values, weight = inference.best_values(model, evidence, SMALL)
    close(weight, logs.amax(1))
    possible = weight > -torch.inf
    agrees = (evidence.values < 0) | (evidence.values == values)
    assert agrees[possible].all()
    rows = (enumerate_states(model)[None] == values[:, None]).all(2).to(torch.uint8).argmax(1)
    close(logs.gather(1, rows[:, None])[possible, 0], logs.amax(1)[possible])


@given(models())
def test_marginals_of_tables_are_the_gradient_and_agree_with_those_of_variables(model):
    tables = inference.table_marginals(model, options=SMALL)
    answer = inference.marginals(model, options=SMALL)
    possible = answer.log_partition > -torch.inf
    for family, beliefs in zip(model.families, tables, strict=True):
        for row, scope in enumerate(family.scopes.tolist()):
            close(beliefs[row].reshape(len(possible), -1).sum(1), possible.double())
            for axis, variable in enumerate(scope):
                others = [1 + k for k in range(len(scope)) if k != axis]
                own = beliefs[row].sum(others) if others else beliefs[row]
                close(own, answer.probabilities[:, variable, : model.states[variable]])


@given(models_with_evidence())
@settings(max_examples=50)
def test_conditioning_on_variables_changes_no_answer(case):
    model, evidence = case
    limited = replace(SMALL, memory=0.7 * inference.cost(model, evidence, SMALL).bytes / 2**30)
    try:
        answer = inference.marginals(model, evidence, limited)
    except InferenceError:
        return
    whole = inference.marginals(model, evidence, SMALL)
    close(answer.log_partition, whole.log_partition)
    close(answer.probabilities, whole.probabilities)
    close(inference.entropy(model, evidence, limited), inference.entropy(model, evidence, SMALL), 1e-7)
    close(
        inference.best_values(model, evidence, limited)[1], inference.best_values(model, evidence, SMALL)[1]
    )


@given(models_with_evidence())
@settings(max_examples=50)
def test_a_batch_beyond_the_memory_limit_is_answered_in_parts(case):
    model, evidence = case
    cost = inference.cost(model, evidence, SMALL)
    # enough for one row, not for two
    limited = replace(SMALL, memory=1.5 * cost.bytes / 2**30)
    answer, whole = inference.marginals(model, evidence, limited), inference.marginals(model, evidence, SMALL)
    close(answer.log_partition, whole.log_partition)
    close(answer.probabilities, whole.probabilities)
    close(
        inference.best_values(model, evidence, limited)[1], inference.best_values(model, evidence, SMALL)[1]
    )
    close(inference.log_partition(model, evidence, limited), whole.log_partition)


def test_a_ring_beyond_the_memory_limit_is_conditioned_and_right():
    generator = torch.Generator().manual_seed(0)
    ring = random_model(generator, [3] * 8, [(k, (k + 1) % 8) for k in range(8)])
    limited = replace(SMALL, memory=0.9 * inference.cost(ring, options=SMALL).bytes / 2**30)
    evidence = TableEvidence.of(ring)
    assert len(conditions_of(ring, evidence, limited, reduce(ring, evidence, limited))) > 1
    total, probabilities, _ = probabilities_of(ring, log_weights(ring))
    answer = inference.marginals(ring, options=limited)
    close(answer.log_partition, total)
    close(answer.probabilities, probabilities)
    states = inference.sample(ring, 4000, options=limited, generator=generator)[0]
    frequency = torch.nn.functional.one_hot(states, 3).double().mean(0)
    close(frequency, probabilities[0], 0.04)


@pytest.mark.parametrize("scale", [1.0, 400.0])
def test_samples_have_the_exact_distribution(scale):
    """Chi-square over all values with enough expected samples."""
    generator = torch.Generator().manual_seed(3)
    model = random_model(
        generator, [2, 3, 2, 2], [(0, 1), (1, 2), (2, 3), (3, 0), (1,)], zeros=0.1, scale=min(scale, 1.0)
    )
    if scale > 1:
        # pairs of tables whose entries cancel: no product of two of them fits a floating-point number
        large = scale * torch.tensor([[0.0, -1.0], [-1.0, 0.0]], dtype=torch.float64)[None, None]
        scope = torch.tensor([[2, 3]])
        model = TableModel(
            model.states, (*model.families, *(Family(scope, sign * large) for sign in (1, 1, -1, -1)))
        )
    evidence = TableEvidence(torch.tensor([[-1, -1, -1, -1], [-1, 0, -1, -1]]))
    count = 20_000
    states = inference.sample(model, count, evidence, SMALL, generator)
    assert states.shape == (2, count, 4)
    for row, logs in enumerate(log_weights(model, evidence)):
        expected = count * (logs - torch.logsumexp(logs, 0)).exp()
        index = torch.zeros(count, dtype=torch.long)
        for variable, size in enumerate(model.states):
            index = index * size + states[row, :, variable]
        counts = torch.bincount(index, minlength=len(logs)).double()
        assert counts[expected == 0].sum() == 0
        often = expected > 5
        statistic = ((counts - expected).square() / expected)[often].sum()
        assert float(statistic) < 2.5 * int(often.sum()) + 20


@pytest.mark.parametrize("exponent", [600, -600])
def test_partition_functions_of_any_size_are_exact(exponent):
    generator = torch.Generator().manual_seed(1)
    model = random_model(generator, [2] * 12, [(k, k + 1) for k in range(11)])
    shift = exponent / 11 * torch.log(torch.tensor(10.0, dtype=torch.float64))
    scaled = TableModel(model.states, tuple(replace(f, logs=f.logs + shift) for f in model.families))
    close(inference.log_partition(scaled, options=SMALL), log_weights(scaled).logsumexp(1))
    close(
        inference.marginals(scaled, options=SMALL).probabilities,
        inference.marginals(model, options=SMALL).probabilities,
    )


def test_entries_that_underflow_beside_others_of_their_table_still_count():
    """One table prefers a state by 10^400, the next ones forbid it almost as strongly."""
    ratio = 400 * torch.log(torch.tensor(10.0, dtype=torch.float64))
    states = (2, 2, 2)
    strong = torch.stack([ratio * 0, -ratio])
    pair = torch.tensor([[0.0, -1e4], [-1e4, 0.0]], dtype=torch.float64)
    families = (
        Family(torch.tensor([[0]]), strong[None, None]),
        Family(torch.tensor([[0, 1]]), pair[None, None]),
        Family(torch.tensor([[1, 2]]), pair[None, None]),
        Family(torch.tensor([[2]]), strong.flip(0)[None, None] + torch.tensor([0.0, 0.5]).double()),
    )
    model = TableModel(states, families)
    total, probabilities, _ = probabilities_of(model, log_weights(model))
    answer = inference.marginals(model, options=SMALL)
    close(answer.log_partition, total)
    close(answer.probabilities, probabilities)
    close(inference.log_partition(model, options=SMALL), total)


@given(st.integers(0, 1000))
@settings(max_examples=10)
def test_first_and_second_gradients_of_the_log_partition_are_right(seed):
    generator = torch.Generator().manual_seed(seed)
    base = random_model(generator, [2, 3, 2], [(0, 1), (1, 2), (0, 2), (1,)], batch=2)
    evidence = TableEvidence(torch.tensor([[-1, -1, -1], [-1, 1, -1]]))

    def total(*logs):
        families = tuple(replace(f, logs=x) for f, x in zip(base.families, logs, strict=True))
        return inference.log_partition(TableModel(base.states, families), evidence, SMALL)

    leaves = [family.logs.clone().requires_grad_() for family in base.families]
    assert torch.autograd.gradcheck(total, leaves, fast_mode=True)
    assert torch.autograd.gradgradcheck(total, leaves, fast_mode=True)


@given(models_with_evidence(), st.randoms())
@settings(max_examples=50)
def test_renaming_variables_and_permuting_tables_changes_nothing(case, random):
    model, evidence = case
    if evidence.scores:
        evidence = TableEvidence(evidence.values)
    order = list(range(len(model.states)))
    random.shuffle(order)
    place = torch.tensor([order.index(v) for v in range(len(order))])
    families = [Family(place[f.scopes], f.logs) for f in model.families]
    random.shuffle(families)
    renamed = TableModel(tuple(model.states[v] for v in order), tuple(families))
    answer = inference.marginals(model, evidence, SMALL)
    other = inference.marginals(renamed, TableEvidence(evidence.values[:, order]), SMALL)
    close(other.log_partition, answer.log_partition)
    close(other.probabilities[:, place], answer.probabilities)


@given(models_with_evidence())
@settings(max_examples=50)
def test_one_row_of_evidence_has_the_same_answer_alone_and_in_a_batch(case):
    model, evidence = case
    if evidence.scores or model.batch > 1:
        return
    answer = inference.marginals(model, evidence, SMALL)
    for row in range(len(evidence.values)):
        alone = inference.marginals(model, TableEvidence(evidence.values[row : row + 1]), SMALL)
        close(alone.probabilities[0], answer.probabilities[row])
        close(alone.log_partition[0], answer.log_partition[row])


@given(models_with_evidence())
@settings(max_examples=50, deadline=None)
def test_large_batches_with_plans_of_their_own_have_the_answers_and_derivatives_of_small_ones(case):
    model, evidence = case
    count = max(model.batch, len(evidence.values))
    rows = torch.arange(count).repeat(100)[:100]

    def answers(rows):
        leaves = [
            (f.logs[:, rows] if model.batch > 1 else f.logs).detach().requires_grad_() for f in model.families
        ]
        own = replace(
            model,
            families=tuple(replace(f, logs=leaf) for f, leaf in zip(model.families, leaves, strict=True)),
        )
        values = evidence.values[rows] if len(evidence.values) > 1 else evidence.values.expand(len(rows), -1)
        scores = {v: x[rows] if len(x) > 1 else x for v, x in evidence.scores.items()}
        query = own, TableEvidence(values, scores), SMALL
        with torch.no_grad():
            answer, best = inference.marginals(*query), inference.best_values(*query)[1]
        total = inference.marginals(*query).log_partition
        possible = total[total > -torch.inf].sum()
        slopes = torch.autograd.grad(possible, leaves, allow_unused=True) if possible.requires_grad else ()
        return answer.log_partition, answer.probabilities, best, inference.entropy(*query), slopes

    *whole, slopes = answers(rows)
    *parts, _ = answers(torch.arange(count))
    for one, other in zip(whole, parts, strict=True):
        close(one, other[rows], 1e-7)
    if count == 1 and slopes:
        *_, alone = answers(torch.arange(1))
        for one, other in zip(slopes, alone, strict=True):
            assert (one is None) is (other is None)
            if one is not None:
                close(one, 100 * other, 1e-7)


def test_a_batch_takes_the_order_with_the_fewest_multiplications_and_one_query_that_with_few_levels():
    generator = torch.Generator().manual_seed(0)
    tree = [(k, 2 * k + 1, 2 * k + 2) for k in range(15)]
    model = random_model(generator, [4] * 31, [*tree, (0,)])
    values = torch.full((4096, 31), -1)
    values[1:, 15:] = torch.randint(4, (4095, 16), generator=generator)
    one, many = (reduce(model, TableEvidence(x), ExactOptions()).plan for x in (values[:1], values))
    assert len(one.products) < len(many.products)
    observed = TableEvidence(values[:1])
    batch, alone = inference.marginals(model, TableEvidence(values)), inference.marginals(model, observed)
    close(batch.probabilities[0], alone.probabilities[0])


@given(models_with_evidence())
@settings(max_examples=50)
def test_evidence_equals_scores_of_its_states(case):
    model, evidence = case
    scores = dict(evidence.scores)
    for variable, size in enumerate(model.states):
        own = evidence.values[:, variable, None]
        states = torch.where((own < 0) | (own == torch.arange(size)), 0.0, -torch.inf).double()
        scores[variable] = scores.get(variable, torch.zeros(1, size)) + states
    soft = TableEvidence(torch.full_like(evidence.values, -1), scores)
    answer, other = inference.marginals(model, evidence, SMALL), inference.marginals(model, soft, SMALL)
    close(other.log_partition, answer.log_partition)
    close(other.probabilities, answer.probabilities)


def test_impossible_evidence_has_log_partition_minus_infinity_and_nothing_is_nan():
    logs = torch.tensor([[0.0, -torch.inf], [-torch.inf, 0.0]], dtype=torch.float64)
    model = TableModel((2, 2), (Family(torch.tensor([[0, 1]]), logs[None, None]),))
    evidence = TableEvidence(torch.tensor([[0, 1], [1, 1], [-1, 0]]))
    answer = inference.marginals(model, evidence, SMALL)
    assert answer.log_partition.tolist() == [-torch.inf, 0.0, 0.0]
    assert not answer.probabilities.isnan().any()
    assert inference.entropy(model, evidence, SMALL).tolist() == [0.0, 0.0, 0.0]
    assert answer.probabilities[0].sum() == 0
    with pytest.raises(InferenceError, match="row 0 .* probability zero"):
        inference.sample(model, 3, evidence, SMALL)
    leaf = logs[None, None].clone().requires_grad_()
    family = Family(torch.tensor([[0, 1]]), leaf)
    total = inference.log_partition(TableModel((2, 2), (family,)), evidence, SMALL)
    (gradient,) = torch.autograd.grad(total[1:].sum(), leaf)
    assert not gradient.isnan().any()


def test_impossible_evidence_in_all_rows_has_derivatives_of_zero():
    # of the one between two observed variables, each leaves another state
    tables = [[[0.3, -torch.inf], [0.1, 0.2]], [[-torch.inf, 0.4], [0.5, 0.6]]]
    logs = torch.tensor(tables, dtype=torch.float64)[:, None].requires_grad_()
    model = TableModel((2, 2, 2), (Family(torch.tensor([[0, 1], [1, 2]]), logs),), ("a", "b", "c"), "chain")
    for rows in (1, 2):
        total = inference.log_partition(model, TableEvidence(torch.tensor([[0, -1, 0]] * rows)))
        assert (total == -torch.inf).all()
        (slope,) = torch.autograd.grad(total.sum(), logs)
        assert (slope == 0).all()


def test_a_model_beyond_the_limits_is_refused_with_its_size():
    generator = torch.Generator().manual_seed(0)
    pairs = [(a, b) for a in range(12) for b in range(a)]
    model = random_model(generator, [3] * 12, pairs)
    with pytest.raises(InferenceError, match=r"largest table has 2\^.*ExactOptions"):
        inference.log_partition(model, options=replace(SMALL, operations=10))
    cost = inference.cost(model, options=SMALL)
    assert cost.variables == 12 and cost.log_operations > 15
    assert "multiplications" in str(cost)


def test_the_plan_of_a_structure_is_made_once(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    model = random_model(generator, [2] * 5, [(k, k + 1) for k in range(4)])
    inference.log_partition(model, options=SMALL)
    monkeypatch.setattr("unn.exact.reduction.search_tree", None)
    inference.log_partition(model, options=SMALL)
    with pytest.raises(TypeError):
        inference.log_partition(model, TableEvidence.of(model, {0: 1}), SMALL)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (torch.tensor([[0, 2]]), "variable '1' has states 0 to 1, got 2"),
        (torch.tensor([[0, -2]]), "variable '1' has states 0 to 1, got -2"),
        (torch.tensor([0, 1]), r"shape \(batch, 2\)"),
        (torch.zeros(0, 2, dtype=torch.long), r"shape \(batch, 2\)"),
        (torch.tensor([[0.0, 1.0]]), "numbers of states"),
    ],
)
def test_evidence_that_does_not_fit_is_refused_by_name(values, message):
    model = TableModel((2, 2), ())
    with pytest.raises(ObservationError, match=message):
        inference.log_partition(model, TableEvidence(values))


@pytest.mark.parametrize(
    ("scopes", "logs", "message"),
    [
        ([[0, 1]], torch.full((1, 1, 2, 2), torch.nan), "finite"),
        ([[0, 1]], torch.full((1, 1, 2, 2), torch.inf), "finite"),
        ([[0, 0]], torch.zeros(1, 1, 2, 2), "twice"),
        ([[0, 5]], torch.zeros(1, 1, 2, 2), "outside 0 to 1"),
        ([[0, 1]], torch.zeros(1, 1, 2, 3), "their variables have others"),
        ([[0, 1]], torch.zeros(1, 2, 2), "scopes have shape"),
    ],
)
def test_tables_that_do_not_fit_are_refused(scopes, logs, message):
    with pytest.raises(ArgumentError, match=message):
        TableModel((2, 2), (Family(torch.tensor(scopes), logs.double()),))


def test_batches_of_tables_and_of_evidence_must_agree():
    generator = torch.Generator().manual_seed(0)
    model = random_model(generator, [2, 2], [(0, 1)], batch=3)
    with pytest.raises(ObservationError, match="different batch sizes"):
        inference.log_partition(model, TableEvidence(torch.full((2, 2), -1)), SMALL)


@settings(max_examples=40)
@given(models_with_evidence(), st.integers(1, 12))
def test_the_k_best_values_are_those_of_enumeration(case, k):
    model, evidence = case
    logs = log_weights(model, evidence)
    values, weights = inference.k_best(model, k, evidence, SMALL)
    expected = logs.sort(1, descending=True).values[:, :k]
    missing = k - expected.shape[1]
    if missing > 0:
        expected = torch.nn.functional.pad(expected, (0, missing), value=-torch.inf)
    close(weights, expected)
    for row, (states, own) in enumerate(zip(values, weights, strict=True)):
        possible = states[own > -torch.inf]
        assert len(possible.unique(dim=0)) == len(possible)
        observed = evidence.values[row if len(evidence.values) > 1 else 0]
        assert ((observed < 0) | (observed == possible)).all()
        numbers = (enumerate_states(model)[None] == possible[:, None]).all(2).to(torch.uint8).argmax(1)
        close(logs[row, numbers], own[own > -torch.inf])


@settings(max_examples=40)
@given(models_with_evidence())
def test_semirings_add_take_the_maximum_and_count(case):
    model, evidence = case
    logs = log_weights(model, evidence)
    close(inference.log_partition(model, evidence, SMALL, semiring="log"), logs.logsumexp(1))
    close(inference.log_partition(model, evidence, SMALL, semiring="max"), logs.amax(1))
    counted = inference.log_partition(model, evidence, SMALL, semiring="count").exp()
    close(counted, (logs > -torch.inf).double().sum(1))


def test_an_unknown_semiring_and_a_k_below_one_are_refused():
    model = random_model(torch.Generator(), [2, 2], [(0, 1)])
    with pytest.raises(ArgumentError, match="'maximum' is unknown.*max"):
        inference.log_partition(model, semiring="maximum")
    for k in (0, 1.5, True):
        with pytest.raises(ArgumentError, match="whole number"):
            inference.k_best(model, k)


@pytest.mark.parametrize(
    "query", ["log_partition", "marginals", "entropy", "table_marginals", "best_values", "cost"]
)
def test_arguments_that_are_no_tables_are_refused_with_what_has_them(query):
    weights = (np.ones((2, 2)),)
    file = ModelFile("MARKOV", ("a", "b"), (("0", "1"),) * 2, ((0, 1),), weights)
    with pytest.raises(ArgumentError, match=r"needs a TableModel, got ModelFile.*file\.model"):
        getattr(inference, query)(file)
    with pytest.raises(ArgumentError, match="evidence on tables must be TableEvidence, got dict"):
        getattr(inference, query)(file.model, {0: 1})
    getattr(inference, query)(file.model, TableEvidence.of(file.model, {0: 1}))


@pytest.mark.parametrize("count", [-1, 1.5, {0: 1}])
def test_numbers_of_samples_that_are_none_are_refused(count):
    model = random_model(torch.Generator(), [2, 2], [(0, 1)])
    with pytest.raises(ArgumentError, match="count must be a whole number"):
        inference.sample(model, count)


def test_a_seed_instead_of_a_generator_is_refused_with_what_to_write():
    model = random_model(torch.Generator(), [2, 2], [(0, 1)])
    with pytest.raises(InferenceError, match=r"manual_seed\(3\)"):
        inference.sample(model, 2, generator=3)


def test_entries_that_underflow_within_one_table_count_where_the_others_are_smaller_still():
    one = torch.tensor([[0.0, -800.0], [-300.0, 0.0], [-300.0, 0.0], [-300.0, 0.0]], dtype=torch.float64)
    model = TableModel((2,), (Family(torch.tensor([[0]] * 4), one[:, None]),), ("x",), "steep")
    assert float(inference.log_partition(model)) == pytest.approx(-800)
    assert inference.marginals(model).probabilities[0, 0, 1] == 1
    assert bool((inference.sample(model, 5) == 1).all())


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6))
def test_tables_over_hundreds_of_orders_of_magnitude_agree_with_sums_of_logarithms(seed):
    generator = torch.Generator().manual_seed(seed)
    scopes = [(0,), (1,), (2,), (0, 1), (1, 2), (0, 2)]
    model = random_model(generator, [2, 2, 2], scopes, scale=300.0)
    expected = log_weights(model, TableEvidence.of(model)).logsumexp(1)
    close(inference.log_partition(model), expected)
    close(inference.marginals(model).log_partition, expected)
    many = TableEvidence(torch.full((100, 3), -1))
    many.values[::2, 0] = 1
    answer = inference.marginals(model, many)
    total, probabilities, _ = probabilities_of(model, log_weights(model, many))
    close(answer.log_partition, total)
    close(answer.probabilities, probabilities)


def table_of(scope, states, logs):
    shape = [states[v] for v in scope]
    return Family(torch.tensor([scope]), torch.tensor(logs).double().view(1, 1, *shape))


def test_what_results_lose_before_they_are_scaled_is_seen():
    states = (3, 2, 2)
    tables = [
        ((2, 0, 1), [-283, -296, 0, -278, -295, -280, -254, -298, -296, -294, 0, -296]),
        ((0, 1, 2), [0, -188, -280, 0, -297, -256, -282, -270, -236, -259, -299, -274]),
        ((0, 2, 1), [-286, -261, -270, -258, -287, -265, -294, -288, -284, -299, -291, 0]),
        ((2, 0, 1), [0, 0, 0, -236, -269, 0, 0, -275, -287, -298, -267, -284]),
        ((2, 0, 1), [-299, -268, -294, -225, -279, -279, -239, 0, -290, 0, -294, -261]),
    ]
    model = TableModel(states, tuple(table_of(scope, states, logs) for scope, logs in tables))
    total, probabilities, entropy = probabilities_of(model, log_weights(model))
    answer = inference.marginals(model)
    close(answer.log_partition, total)
    close(answer.probabilities, probabilities)
    close(inference.entropy(model), entropy)
    close(inference.log_partition(model), inference.log_partition(model, semiring="log"))
    assert inference.best_values(model)[0].tolist() == inference.sample(model, 1)[:, 0].tolist()
    assert all(bool(x.isfinite().all()) for x in inference.table_marginals(model))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([1, 100]))
def test_overlapping_tables_of_nearly_disjoint_support_agree_with_enumeration(seed, batch):
    generator = torch.Generator().manual_seed(seed)
    states, orders = (3, 2, 2), [(0, 1, 2), (2, 0, 1), (0, 2, 1)]
    families = []
    for k in range(5):
        scope = orders[k % 3]
        shape = (1, 1, *(states[v] for v in scope))
        logs = -300 + 120 * torch.rand(shape, generator=generator).double()
        families.append(
            Family(torch.tensor([scope]), torch.where(torch.rand(shape, generator=generator) < 0.2, 0, logs))
        )
    model = TableModel(states, tuple(families))
    values = torch.full((batch, 3), -1)
    values[1::2, 0] = 1
    evidence = TableEvidence(values)
    total, probabilities, entropy = probabilities_of(model, log_weights(model, evidence))
    answer = inference.marginals(model, evidence)
    close(answer.log_partition, total)
    close(answer.probabilities, probabilities)
    close(inference.log_partition(model, evidence), total)
    close(inference.entropy(model, evidence), entropy, 1e-7)
    assert all(bool(x.isfinite().all()) for x in inference.table_marginals(model, evidence))


def test_the_entropy_counts_weights_that_single_tables_lose():
    logs = torch.tensor([[0.0, -900, -372.0, -372.3], [-900, 0, -372, -372]]).double()
    model = TableModel((4,), (Family(torch.tensor([[0], [0]]), logs[:, None]),))
    weights = (logs.sum(0) - logs.sum(0).amax()).softmax(0)
    close(inference.entropy(model), torch.special.entr(weights).sum()[None])


def test_rows_of_scores_about_a_variable_that_one_row_gives_are_a_batch():
    model = TableModel((2,), ())
    evidence = TableEvidence(torch.tensor([[1]]), {0: torch.tensor([[5.0, 2.0], [5.0, 3.0]])})
    assert inference.log_partition(model, evidence).tolist() == [2.0, 3.0]
    assert inference.marginals(model, evidence).probabilities.tolist() == [[[0.0, 1.0]]] * 2


@pytest.mark.parametrize("variable", [-1, 2])
def test_scores_of_an_unknown_variable_are_refused(variable):
    model = TableModel((2, 2), ())
    evidence = TableEvidence(torch.full((1, 2), -1), {variable: torch.zeros(1, 2)})
    with pytest.raises(ObservationError, match="numbered from 0"):
        inference.log_partition(model, evidence)


def test_tables_that_zeros_leave_one_state_are_summed_in_double_precision():
    logs = torch.tensor([-0.1, -torch.inf]).expand(20_000, 1, 2)
    model = TableModel((2,) * 20_000, (Family(torch.arange(20_000)[:, None], logs),))
    expected = 20_000 * float(torch.tensor(-0.1).double())
    close(inference.log_partition(model), torch.tensor([expected], dtype=torch.float64))


def test_more_values_than_memory_holds_are_refused():
    model = random_model(torch.Generator(), [2, 2], [(0, 1)])
    with pytest.raises(ArgumentError, match="1,000,000"):
        inference.k_best(model, 10**12)
