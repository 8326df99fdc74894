"""Coordinate descent as a model: one query has the same loss and answer in any batch; bad input is named."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import unn
from factors import Multilinear
from unn.extending import DescentOptions


def chain(**options):
    torch.manual_seed(0)
    g = unn.FactorGraph("chain", n=3)
    A, B, C = (g.variable(name, "n", unn.BinaryEntropy()) for name in "ABC")
    W, V = g.parameter("W", "n"), g.parameter("V", "n")
    g.factor(Multilinear(W["i"], A["i"], B["i"]))
    g.factor(Multilinear(V["i"], B["i"], C["i"]))
    with torch.no_grad():
        g.W.mul_(3), g.V.mul_(3)
    return unn.DescentModel(g, DescentOptions(**{"iterations": 1, "sweep": "forward", **options})).eval()


def examples(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randint(2, (count, 3), generator=generator).float() for name in "ABC"}


def masks(count, seed):
    """Of each variable all nodes, none, or some are observed in each row."""
    generator = torch.Generator().manual_seed(seed)
    some = torch.rand(count, 3, generator=generator) < 0.5
    kind = torch.randint(3, (count, 1), generator=generator)
    return torch.where(kind == 0, False, torch.where(kind == 1, True, some))


@settings(max_examples=25)
@given(seed=st.integers(0, 10_000))
def test_answers_to_queries_do_not_depend_on_the_other_queries_of_the_batch(seed):
    model, values = chain(iterations=2), examples(6, seed)
    given = {name: unn.Partial(values[name], masks(6, seed + k)) for k, name in enumerate("AC")}
    together = model.infer_values(given, 6, {})
    for k in range(6):
        alone = {n: unn.Partial(x.value[k : k + 1], x.mask[k : k + 1]) for n, x in given.items()}
        for name, x in model.infer_values(alone, 1, {}).items():
            torch.testing.assert_close(together[name][k : k + 1], x, rtol=0, atol=1e-6)


@settings(max_examples=25)
@given(seed=st.integers(0, 10_000))
def test_the_loss_of_a_batch_is_the_mean_over_the_unobserved_nodes_of_its_rows(seed):
    model, values = chain(), examples(5, seed)
    del values["B"]
    observed = {"C": masks(5, seed), "A": torch.ones(1, 1, dtype=torch.bool)}
    hidden = (~observed["C"]).sum(1)
    rows = [
        model.loss({n: x[k : k + 1] for n, x in values.items()}, {**observed, "C": observed["C"][k : k + 1]})
        for k in range(5)
    ]
    expected = (torch.stack(rows) * hidden).sum() / hidden.sum().clamp(min=1)
    torch.testing.assert_close(model.loss(values, observed), expected)


@pytest.mark.parametrize("initial", ["random", "uniform"])
def test_training_and_inference_begin_at_the_same_values(initial):
    model, values = chain(initial=initial, iterations=1), examples(4)
    torch.manual_seed(3)
    trained = model.unrolled(["A"], [], ["C"])(values["A"])
    torch.manual_seed(3)
    inferred = model.infer_values({"A": values["A"]}, 4, {})["C"]
    torch.testing.assert_close(trained[0] if isinstance(trained, tuple) else trained, inferred)


def test_evidence_without_an_observed_entry_is_no_evidence():
    model = chain()
    empty = unn.Partial(torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.bool))
    for name, x in model.infer_values({}, 2, {}).items():
        torch.testing.assert_close(model.infer_values({"C": empty}, 2, {})[name], x)


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        (lambda v, o: o.update(C=torch.ones(2, 3, dtype=torch.bool)), r"'C'.*\(2, 3\)"),
        (lambda v, o: o.update(C=torch.ones(5, 3)), "'C'.*float32"),
        (lambda v, o: o.update(C=[True]), "'C'.*True"),
        (lambda v, o: v.update(C=v["C"][:1]), "'C'"),
        (lambda v, o: v.update(C=v["C"] + 2), "'C'.*domain"),
        (lambda v, o: v.update(C=v["C"] * float("nan")), "'C'.*NaN"),
        (lambda v, o: v.update(C=v["C"].tolist()), "'C'.*list"),
        (lambda v, o: o.update(D=torch.ones(1, 1, dtype=torch.bool)), "'D'"),
    ],
)
def test_examples_and_masks_that_do_not_fit_are_refused_by_name(change, facts):
    values, observed = examples(5), {"C": torch.ones(1, 1, dtype=torch.bool)}
    change(values, observed)
    with pytest.raises(unn.ObservationError, match=facts):
        chain().loss(values, observed)


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (({"A": torch.zeros(3, 3)}, 2, {}), r"'A'.*2 queries.*\(3, 3\)"),
        (({"A": [0, 1, 0]}, 1, {}), "'A'.*list"),
        (({}, -1, {}), "count.*-1"),
        (({}, 2, {"n": 4}), "'n'.*size 3, not 4"),
        (({}, 2, {}, 0), "iterations"),
    ],
)
def test_evidence_counts_and_sizes_that_do_not_fit_are_refused(arguments, facts):
    with pytest.raises(unn.UnnError, match=facts):
        chain().infer_values(*arguments)
