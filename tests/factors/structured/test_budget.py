"""Subsets of k entries: the contract, enumeration at any scale, padding, forbidden entries, the scores of
given marginals, inference."""

from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.helpers import says

import unn
from factors import Multilinear
from factors.structured.budget import Budget
from unn.testing import RegularizerContract

D = torch.float64


class TestBudget(RegularizerContract):
    full_dimensional = False
    value_derivatives = 1
    works_under_vmap = False
    compiles_whole = False

    def regularizer(self):
        return Budget(2)

    def test_coupled_axes_are_named(self):
        by_name = Budget(2, over="row").bind(("row", "entry"), "X")
        assert by_name.over_axes(("row", "entry")) == ("row",)
        t = torch.randn(3, 4, 3, dtype=D)
        for function in ("mirror", "argmax"):
            torch.testing.assert_close(getattr(by_name, function)(t), getattr(Budget(2), function)(t.mT).mT)
        torch.testing.assert_close(by_name.value(by_name.mirror(t)), Budget(2).value(Budget(2).mirror(t.mT)))
        assert by_name.contains(by_name.sample(t)).all() and repr(by_name) == "Budget(2, over='row')"


class TestBudgetOfAllButOne(TestBudget):
    shape = (3, 2, 6)

    def regularizer(self):
        return Budget(4)


def subsets(n, k):
    return torch.stack(
        [
            torch.zeros(n, dtype=D).index_fill(0, torch.tensor(chosen), 1.0)
            for chosen in combinations(range(n), k)
        ]
    )


@given(
    n=st.integers(1, 7),
    k=st.integers(1, 7),
    scale=st.sampled_from([0.1, 1.0, 30.0, 1000.0]),
    forbid=st.sampled_from([0.0, 0.0, 0.3]),
    seed=st.integers(0, 10_000),
)
@settings(max_examples=80, deadline=None)
def test_every_sum_and_maximum_is_that_of_all_subsets(n, k, scale, forbid, seed):
    n = max(n, k)
    r, every, generator = Budget(k), subsets(n, k), torch.Generator().manual_seed(seed)
    t = scale * torch.randn(1, n, dtype=D, generator=generator)
    t = t.masked_fill(torch.rand(1, n, generator=generator) < forbid, -torch.inf)
    scores = torch.where(every > 0, t, 0).sum(1)
    if scores.max() == -torch.inf:
        assert r.conjugate(t) == -torch.inf and (r.mirror(t) == 0).all()
        for function in (r.argmax, r.sample):
            with pytest.raises(unn.ObservationError, match=says("batch element 0", "-inf")):
                function(t)
        return
    chances = torch.softmax(scores, 0)
    torch.testing.assert_close(r.conjugate(t)[0], scores.logsumexp(0), atol=1e-11, rtol=1e-13)
    torch.testing.assert_close(r.mirror(t)[0], chances @ every, atol=1e-11, rtol=0)
    torch.testing.assert_close(r.entropy(t)[0], torch.special.entr(chances).sum(), atol=1e-8, rtol=0)
    torch.testing.assert_close(-r.value(r.mirror(t))[0], torch.special.entr(chances).sum(), atol=1e-9, rtol=0)
    best, drawn = r.argmax(t)[0], r.sample(t, generator=generator)[0]
    torch.testing.assert_close(torch.where(best > 0, t[0], 0).sum(), scores.max(), atol=1e-9, rtol=1e-13)
    for x in (best, drawn):
        assert (every == x).all(1).any() and (t[0, x > 0] > -torch.inf).all()


@given(
    n=st.integers(2, 7),
    k=st.integers(1, 6),
    scale=st.sampled_from([0.1, 1.0, 30.0]),
    share=st.sampled_from([0.2, 0.5, 1.0]),
    seed=st.integers(0, 10_000),
)
@settings(max_examples=60, deadline=None)
def test_subsets_with_given_and_excluded_entries_are_those_that_agree(n, k, scale, share, seed):
    n, generator = max(n, k), torch.Generator().manual_seed(seed)
    every = subsets(n, k)
    truth = every[torch.randint(len(every), (3,), generator=generator)]
    where = torch.rand(3, n, generator=generator) < share
    r = Budget(k).restricted(torch.where(where, truth, 0), where)
    # one row of scores for all batch elements
    t = scale * torch.randn(1, n, dtype=D, generator=generator)
    conjugate, mirror, best, drawn = r.conjugate(t), r.mirror(t.expand(3, -1)), r.argmax(t), r.sample(t)
    scores = every @ t[0]
    for b in range(3):
        agrees = ((every == truth[b]) | ~where[b]).all(1)
        own = torch.where(agrees, scores, -torch.inf)
        torch.testing.assert_close(conjugate[b], own.logsumexp(0), atol=1e-11, rtol=1e-13)
        torch.testing.assert_close(mirror[b], own.softmax(0) @ every, atol=1e-11, rtol=0)
        torch.testing.assert_close(best[b] @ t[0], own.max(), atol=1e-9, rtol=1e-13)
        for x in (best[b], drawn[b]):
            assert (every[agrees] == x).all(1).any()
    assert bool(r.contains(mirror).all()) and bool(r.contains(truth).all())
    entropy = torch.special.entr(torch.where(agrees, scores, -torch.inf).softmax(0)).sum()
    torch.testing.assert_close(-r.value_at_mirror(mirror, t.expand(3, -1))[2], entropy, atol=1e-8, rtol=0)
    torch.testing.assert_close(-r.value(mirror)[2], entropy, atol=1e-8, rtol=0)


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({0: 0.5}, ("neither 0 nor 1", "given (1) or excluded (0)")),
        ({0: 1.0, 1: 1.0, 2: 1.0}, ("batch element 1", "more than 2 given entries")),
        ({0: 0.0, 1: 0.0, 2: 0.0}, ("batch element 1", "fewer than 2 entries", "not excluded")),
    ],
)
def test_entries_that_no_subset_has_are_refused_by_name(entries, words):
    value, where = torch.zeros(2, 4, dtype=D), torch.zeros(2, 4, dtype=torch.bool)
    for place, x in entries.items():
        value[1, place], where[1, place] = x, True
    with pytest.raises(unn.ObservationError, match=says("Budget(2)", *words)):
        Budget(2).restricted(value, where)


def test_a_subset_that_is_given_in_part_conditions_the_others_and_padding_is_left_out():
    g = unn.FactorGraph("extract", k=3).double()
    z, x = g.variable("Z", "sentence", Budget(2)), g.variable("X", "sentence k", unn.SquaredNorm())
    h = g.variable("H", "k", unn.SignedEntropy())
    g.factor(Multilinear(z["i"], x["i k"], h["k"]))
    x = 2 * torch.randn(2, 5, 3, dtype=D, generator=torch.Generator().manual_seed(0))
    value, where = torch.zeros(2, 5, dtype=D), torch.zeros(2, 5, dtype=torch.bool)
    value[:, 1], where[:, 1:3] = 1, True
    start = {"H": torch.full((2, 3), 0.1, dtype=D)}
    out = unn.infer(
        g,
        {"X": x, "Z": unn.Partial(value, where)},
        order=["Z", "H"],
        initial=start,
        iterations=8,
        lengths={"sentence": torch.tensor([5, 4])},
    )
    assert out.energy.isfinite().all() and (out.energy.diff(dim=0) <= 1e-9).all()
    assert (out["Z"][:, 1] == 1).all() and (out["Z"][:, 2] == 0).all() and out["Z"][1, 4] == 0
    torch.testing.assert_close(out["Z"].sum(1), torch.full((2,), 2.0, dtype=D))
    expected = (x[0, [0, 3, 4]] @ out["H"][0]).softmax(0)
    torch.testing.assert_close(out["Z"][0, [0, 3, 4]], expected, atol=1e-3, rtol=0)


@given(
    n=st.integers(2, 40), seed=st.integers(0, 10_000), spread=st.sampled_from([0.3, 2.0, 6.0]), data=st.data()
)
@settings(max_examples=30, deadline=None)
def test_scores_are_found_for_any_marginals(n, seed, spread, data):
    k = data.draw(st.integers(1, n - 1))
    generator = torch.Generator().manual_seed(seed)
    # not marginals of any scores in particular: averages of extreme ones
    t = spread * torch.randn(4, n, dtype=D, generator=generator)
    x = Budget(k).mirror(t).mean(0, keepdim=True)
    dual, reached = Budget(k).scores_of(x)
    torch.testing.assert_close(reached, x, atol=1e-10, rtol=0)
    torch.testing.assert_close(Budget(k).mirror(dual), x, atol=1e-10, rtol=0)


def test_a_budget_of_one_is_softmax():
    t = 5 * torch.randn(3, 2, 6, dtype=D)
    r = Budget(1)
    torch.testing.assert_close(r.mirror(t), torch.softmax(t, -1))
    torch.testing.assert_close(r.conjugate(t), unn.Entropy().conjugate(t))
    torch.testing.assert_close(r.value(r.mirror(t)), unn.Entropy().value(r.mirror(t)))


@given(
    junk=st.sampled_from([0.0, 1e4, float("inf"), float("nan")]),
    more=st.integers(0, 5),
    scale=st.sampled_from([1.0, 1000.0]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=20, deadline=None)
def test_ragged_batches_are_their_elements_whatever_stands_in_the_padding(junk, more, scale, seed):
    generator = torch.Generator().manual_seed(seed)
    sizes, r = [3, 6, 2], Budget(2)
    t = torch.full((3, 6 + more), junk, dtype=D)
    mask = torch.arange(6 + more) < torch.tensor(sizes)[:, None]
    for b, n in enumerate(sizes):
        t[b, :n] = scale * torch.randn(n, dtype=D, generator=generator)
    t.requires_grad_()
    x, partition, best, drawn = (
        r.mirror(t, mask),
        r.conjugate(t, mask),
        r.argmax(t, mask),
        r.sample(t, mask, generator),
    )
    (gradient,) = torch.autograd.grad((x * x.detach()).sum(), t)
    assert gradient.isfinite().all() and (gradient[~mask] == 0).all() and (x[~mask] == 0).all()
    assert (
        all(r.contains(value.detach(), mask).all() for value in (x, best, drawn))
        and r.value(x.detach(), mask).isfinite().all()
    )
    for b, n in enumerate(sizes):
        torch.testing.assert_close(x[b, :n], r.mirror(t[b : b + 1, :n])[0], atol=1e-11, rtol=0)
        torch.testing.assert_close(partition[b], r.conjugate(t[b : b + 1, :n])[0])
        assert torch.equal(best[b, :n], r.argmax(t[b : b + 1, :n])[0])


def test_samples_come_with_the_probabilities_of_their_subsets():
    t = torch.randn(1, 5, dtype=D, generator=torch.Generator().manual_seed(0))
    every, count = subsets(5, 2), 40_000
    drawn = Budget(2).sample(t.expand(count, 5), generator=torch.Generator().manual_seed(1))
    for x, chance in zip(every, torch.softmax(every @ t[0], 0), strict=True):
        share = (drawn == x).all(1).double().mean()
        assert (share - chance).abs() < 4 * (chance * (1 - chance) / count) ** 0.5 + 1e-4


def test_what_is_no_mean_of_subsets_is_outside():
    r = Budget(2)
    x = torch.tensor(
        [[0.5, 0.5, 1.0], [0.5, 0.5, 0.9], [1.2, 0.8, 0.0], [1.1, 1.0, -0.1], [1.0, 1.0, 0.0]], dtype=D
    )
    assert r.contains(x).tolist() == [True, False, False, False, True]
    assert r.value(x).isfinite().tolist() == [True, False, False, False, True]
    torch.testing.assert_close(
        r.value(x[[0, 4]]), torch.tensor([-0.6931471805599453, 0.0], dtype=D), atol=1e-9, rtol=0
    )


@pytest.mark.parametrize(
    ("attempt", "error", "words"),
    [
        (lambda: Budget(0), unn.DeclarationError, ("k >= 1", "0")),
        (lambda: Budget(1.5), unn.DeclarationError, ("whole number", "1.5")),
        (lambda: Budget(True), unn.DeclarationError, ("whole number", "True")),
        (lambda: Budget(2, over="b").bind(("a",), "Z"), unn.DeclarationError, ("'Z'", "'b'")),
        (lambda: Budget(3).mirror(torch.zeros(1, 2)), unn.ObservationError, ("Budget(3)", "2 entries")),
        (
            lambda: Budget(3).conjugate(
                torch.zeros(2, 2, 4), torch.tensor([[[True]], [[False]]]) | (torch.arange(4) < 2)
            ),
            unn.ObservationError,
            ("Budget(3)", "batch element 1", "2 entries"),
        ),
    ],
)
def test_what_makes_no_sense_is_refused(attempt, error, words):
    with pytest.raises(error, match=says(*words)):
        attempt()


def test_energies_never_rise_and_padding_is_left_out():
    g = unn.FactorGraph("extract", k=3)
    z, x, h = (
        g.variable("Z", "sentence", Budget(2)),
        g.variable("X", "sentence k", unn.SquaredNorm()),
        g.variable("H", "k", unn.SignedEntropy()),
    )
    g.factor(Multilinear(z["i"], x["i k"], h["k"]))
    g.double()
    x = 2 * torch.randn(2, 6, 3, dtype=D, generator=torch.Generator().manual_seed(0))
    start = {"H": torch.full((2, 3), 0.1, dtype=D)}
    out = unn.infer(
        g, {"X": x}, order=["Z", "H"], initial=start, iterations=8, lengths={"sentence": torch.tensor([6, 3])}
    )
    assert out.energy.isfinite().all() and (out.energy.diff(dim=0) <= 1e-9).all()
    alone = unn.infer(g, {"X": x[1:, :3]}, order=["Z", "H"], initial={"H": start["H"][1:]}, iterations=8)
    torch.testing.assert_close(out["Z"][1, :3], alone["Z"][0])
    torch.testing.assert_close(out.energy[:, 1], alone.energy[:, 0])
    assert (out["Z"][1, 3:] == 0).all() and out["Z"][0].sum() == pytest.approx(2)


@pytest.mark.parametrize("trace", [True, False], ids=["energies", "values alone"])
@pytest.mark.parametrize("start", [{}, {"Z": "uniform"}], ids=["absent", "uniform"])
def test_a_batch_of_different_evidence_has_the_answers_of_its_elements(start, trace):
    g = unn.FactorGraph("summary", sentence=4).double()
    z, s = g.variable("Z", "sentence", Budget(2)), g.constant("s", "sentence")
    g.factor(Multilinear(s["i"], z["i"]))
    value = torch.tensor([[0.0, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 1], [0, 0, 0, 0]], dtype=D)
    where = torch.tensor([[0, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 1]], dtype=torch.bool)
    for scores in (torch.randn(1, 4, dtype=D, generator=torch.Generator().manual_seed(1)).expand(4, 4), None):
        if scores is None:
            g = unn.FactorGraph("bias", sentence=4).double()
            z = g.variable("Z", "sentence", Budget(2))
            g.factor(Multilinear(g.parameter("b", "sentence", init=1.0)["i"], z["i"]))
            g.double()
        options = {"order": ["Z"], "initial": start, "trace": trace}
        constant = {} if scores is None else {"s": scores}
        out = unn.infer(g, {**constant, "Z": unn.Partial(value, where)}, **options)
        torch.testing.assert_close(out["Z"].sum(1), torch.full((4,), 2.0, dtype=D))
        for b in range(4):
            constant = {} if scores is None else {"s": scores[b : b + 1]}
            partial = unn.Partial(value[b : b + 1], where[b : b + 1])
            alone = unn.infer(g, {**constant, "Z": partial}, **options)
            torch.testing.assert_close(alone["Z"], out["Z"][b : b + 1])
            if trace:
                torch.testing.assert_close(alone.energy[-1], out.energy[-1, b : b + 1])


@pytest.mark.parametrize("name", ["mirror", "conjugate", "argmax", "contains", "value"])
def test_one_row_of_scores_meets_the_evidence_of_every_batch_element(name):
    value = torch.tensor([[0.0, 0, 0, 0], [1, 0, 0, 0], [0, 0, 1, 0]], dtype=D)
    where = torch.tensor([[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 1, 1]], dtype=torch.bool)
    t = torch.randn(1, 4, dtype=D, generator=torch.Generator().manual_seed(2))
    x = Budget(2).restricted(value, where).mirror(t) if name in ("contains", "value") else t
    together = getattr(Budget(2).restricted(value, where), name)(x)
    for b in range(3):
        own = Budget(2).restricted(value[b : b + 1], where[b : b + 1])
        one = getattr(own, name)(x if len(x) == 1 else x[b : b + 1])
        torch.testing.assert_close(one, together[b : b + 1])
