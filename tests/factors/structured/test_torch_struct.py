"""Distributions of torch-struct as regularizers: the contract, enumeration at any scale, padding, forbidden
entries, inference."""

from itertools import product

import pytest
import torch
import torch_struct
from hypothesis import given, settings
from hypothesis import strategies as st
from support.helpers import says

import unn
from factors import Multilinear
from factors.structured.torch_struct import Structured
from unn.testing import RegularizerContract

D = torch.float64
CHAIN, SEGMENTS = Structured(torch_struct.LinearChainCRF), Structured(torch_struct.SemiMarkovCRF)
PROJECTIVE, ONE_ROOT = (
    Structured(torch_struct.DependencyCRF),
    Structured(torch_struct.DependencyCRF, multiroot=False),
)
ALIGNMENT, SPANS = Structured(torch_struct.AlignmentCRF), Structured(torch_struct.TreeCRF)


class StructuredContract(RegularizerContract):
    full_dimensional = False
    works_under_vmap = False
    compiles_whole = False


class TestLinearChain(StructuredContract):
    shape = (3, 2, 3, 2, 2)

    def regularizer(self):
        return CHAIN

    def padding(self):
        return box(self.shape, {2: 2})


class TestSemiMarkov(StructuredContract):
    shape = (3, 2, 3, 3, 2, 2)

    def regularizer(self):
        return SEGMENTS

    def padding(self):
        return box(self.shape, {2: 2})


class TestAlignment(StructuredContract):
    shape = (3, 2, 4, 3, 3)

    def regularizer(self):
        return ALIGNMENT

    def padding(self):
        return box(self.shape, {2: 2, 3: 2})


@pytest.mark.slow
class TestProjective(StructuredContract):
    contains_is_closed_form = False
    shape = (3, 2, 3, 3)
    value_derivatives = 1
    accuracy = 1e-7
    examples = 5

    def regularizer(self):
        return PROJECTIVE

    def padding(self):
        return box(self.shape, {2: 2, 3: 2})


@pytest.mark.slow
class TestProjectiveWithOneRoot(TestProjective):
    def regularizer(self):
        return ONE_ROOT


class TestSpans(StructuredContract):
    contains_is_closed_form = False
    shape = (3, 2, 3, 3, 2)
    value_derivatives = 1
    accuracy = 1e-7
    examples = 5

    def regularizer(self):
        return SPANS

    def padding(self):
        return box(self.shape, {2: 2, 3: 2})


def box(shape, sizes):
    """A mask that keeps the first entries along some axes, and the slices that do."""
    kept = tuple(slice(0, sizes.get(k)) for k in range(len(shape)))
    mask = torch.zeros(shape, dtype=torch.bool)
    mask[kept] = True
    return mask, kept


def parts(shape, entries):
    x = torch.zeros(shape, dtype=D)
    for entry in entries:
        x[entry] = 1
    return x


def chains(n, c):
    return [
        parts((n, c, c), [(k, z[k + 1], z[k]) for k in range(n)]) for z in product(range(c), repeat=n + 1)
    ]


def segmentations(n, k, c):
    def grow(position, label, entries):
        if position == n:
            yield parts((n, k, c, c), entries)
        for width, after in product(range(1, k), range(c)):
            if position + width <= n:
                yield from grow(position + width, after, [*entries, (position, width, after, label)])

    return [x for label in range(c) for x in grow(0, label, [])]


def alignments(n, m):
    def grow(i, j, entries):
        if (i, j) == (n - 1, m - 1):
            yield parts((n, m, 3), entries)
        for op, (down, right) in enumerate(((0, 1), (1, 1), (1, 0))):
            if i + down < n and j + right < m:
                yield from grow(i + down, j + right, [*entries, (i + down, j + right, op)])

    return list(grow(0, 0, [(0, 0, 1)]))


def bracketings(n, labels):
    def spans(i, j):
        inside = (
            [[]] if i == j else [a + b for k in range(i, j) for a in spans(i, k) for b in spans(k + 1, j)]
        )
        return [[*rest, (i, j, label)] for rest in inside for label in range(labels)]

    return [parts((n, n, labels), entries) for entries in spans(0, n - 1)]


def projective_trees(n, multiroot):
    trees = []
    for heads in product(range(n), repeat=n):
        roots = [m for m, h in enumerate(heads) if h == m]
        nodes = list(range(n))
        for _ in range(n):
            nodes = [heads[m] for m in nodes]
        if not roots or not set(nodes) <= set(roots) or (not multiroot and len(roots) > 1):
            continue
        # the root of all is before the first word
        arcs = [(-1, m) if h == m else (min(h, m), max(h, m)) for m, h in enumerate(heads)]
        if not any(a < c < b < d for (a, b), (c, d) in product(arcs, repeat=2)):
            trees.append(parts((n, n), [(h, m) for m, h in enumerate(heads)]))
    return trees


CASES = {
    "chain": (CHAIN, lambda n: chains(n, 2)),
    "three labels": (CHAIN, lambda n: chains(min(n, 3), 3)),
    "segments": (SEGMENTS, lambda n: segmentations(n, 3, 2)),
    "wide segments": (SEGMENTS, lambda n: segmentations(n, 5, 1)),
    "alignment": (ALIGNMENT, lambda n: alignments(n, 3)),
    "wide alignment": (ALIGNMENT, lambda n: alignments(2, n)),
    "projective": (PROJECTIVE, lambda n: projective_trees(n, True)),
    "one root": (ONE_ROOT, lambda n: projective_trees(n, False)),
    "spans": (SPANS, lambda n: bracketings(n, 2)),
}
KINDS = pytest.mark.parametrize("kind", CASES)
LENGTH_AXES = {
    CHAIN: (0,),
    SEGMENTS: (0,),
    ALIGNMENT: (0,),
    PROJECTIVE: (0, 1),
    ONE_ROOT: (0, 1),
    SPANS: (0, 1),
}


def enumerated(structures, t):
    """Log-partition, marginals, entropy and the largest score, by listing all structures; None where none is
    possible."""
    scores = (structures * torch.where(structures > 0, t, 0)).flatten(1).sum(1)
    if scores.max() == -torch.inf:
        return None
    chances = torch.softmax(scores, 0)
    mean = torch.tensordot(chances, structures, 1)
    return torch.logsumexp(scores, 0), mean, torch.special.entr(chances).sum(), scores.max()


@KINDS
@given(
    n=st.integers(1, 4),
    scale=st.sampled_from([0.1, 1.0, 30.0, 1000.0]),
    forbid=st.sampled_from([0.0, 0.0, 0.15, 0.4]),
    seed=st.integers(0, 10_000),
)
@settings(max_examples=25, deadline=None)
def test_every_sum_and_maximum_is_that_of_all_structures(kind, n, scale, forbid, seed):
    r, build = CASES[kind]
    structures = torch.stack(build(n))
    generator = torch.Generator().manual_seed(seed)
    t = scale * torch.randn(structures.shape[1:], generator=generator, dtype=D)
    t = t.masked_fill(torch.rand(t.shape, generator=generator) < forbid, -torch.inf)
    expected = enumerated(structures, t)
    if expected is None:
        assert r.conjugate(t[None]) == -torch.inf and (r.mirror(t[None]) == 0).all()
        for function in (r.argmax, r.sample):
            with pytest.raises(unn.ObservationError, match=says("batch element 0", "no possible structure")):
                function(t[None])
        return
    partition, mean, entropy, most = expected
    torch.testing.assert_close(r.conjugate(t[None])[0], partition, atol=1e-11, rtol=1e-13)
    torch.testing.assert_close(r.mirror(t[None])[0], mean, atol=1e-11, rtol=0)
    # a difference of sums as large as the scores
    torch.testing.assert_close(r.entropy(t[None])[0], entropy, atol=max(1e-9, 1e-10 * scale), rtol=0)
    best = r.argmax(t[None])[0]
    assert any(torch.equal(best, x) for x in structures)
    torch.testing.assert_close((best * torch.where(best > 0, t, 0)).sum(), most, atol=1e-9, rtol=1e-13)
    drawn = r.sample(t[None], generator=generator)[0]
    assert any(torch.equal(drawn, x) for x in structures) and not (t[drawn > 0] == -torch.inf).any()


@pytest.mark.slow
@KINDS
@given(
    scale=st.sampled_from([1.0, 30.0, 1000.0]),
    junk=st.sampled_from([0.0, 1e4, -1e5, float("inf"), float("nan")]),
    more=st.integers(0, 3),
    seed=st.integers(0, 1000),
)
@settings(max_examples=15, deadline=None)
def test_ragged_batches_are_their_elements_whatever_stands_in_the_padding_and_however_much(
    kind, scale, junk, more, seed
):
    r, build = CASES[kind]
    generator = torch.Generator().manual_seed(seed)
    shorter = [torch.stack(build(n)).shape[1:] for n in (2, 4, 1)]
    full = tuple(
        max(size) + (more if k in LENGTH_AXES[r] else 0) for k, size in enumerate(zip(*shorter, strict=True))
    )
    t, mask = torch.full((3, *full), junk, dtype=D), torch.zeros(3, *full, dtype=torch.bool)
    own = [scale * torch.randn(size, generator=generator, dtype=D) for size in shorter]
    for b, scores in enumerate(own):
        kept = (b, *(slice(0, size) for size in scores.shape))
        t[kept], mask[kept] = scores, True
    t.requires_grad_()
    x, partition = r.mirror(t, mask), r.conjugate(t, mask)
    (gradient,) = torch.autograd.grad((x * x.detach()).sum(), t)
    assert gradient.isfinite().all() and (gradient[~mask] == 0).all() and (x[~mask] == 0).all()
    best, drawn = r.argmax(t, mask), r.sample(t, mask, generator)
    for b, scores in enumerate(own):
        kept = tuple(slice(0, size) for size in scores.shape)
        torch.testing.assert_close(partition[b], r.conjugate(scores[None])[0], atol=1e-11, rtol=1e-12)
        torch.testing.assert_close(x[b][kept], r.mirror(scores[None])[0], atol=1e-11, rtol=0)
        assert torch.equal(best[b][kept], r.argmax(scores[None])[0])
        assert r.contains(drawn[b][kept][None])
    assert r.contains(x.detach(), mask).all() and r.contains(best, mask).all()


@KINDS
def test_samples_come_with_the_probabilities_of_their_structures(kind):
    r, build = CASES[kind]
    structures = torch.stack(build(3))
    t = torch.randn(structures.shape[1:], generator=torch.Generator().manual_seed(0), dtype=D)
    count = 20_000
    drawn = r.sample(t.expand(count, *t.shape), generator=torch.Generator().manual_seed(1)).flatten(1)
    chances = torch.softmax((structures * t).flatten(1).sum(1), 0)
    for x, chance in zip(structures.flatten(1), chances, strict=True):
        share = (drawn == x).all(1).double().mean()
        assert (share - chance).abs() < 4 * (chance * (1 - chance) / count) ** 0.5 + 1e-4


@KINDS
def test_what_is_no_mean_of_structures_is_outside_and_has_infinite_value(kind):
    r, build = CASES[kind]
    structures = torch.stack(build(3))
    mean = structures.mean(0)
    inside = torch.stack([mean, structures[0], structures[-1]])
    assert r.contains(inside).all() and r.value(inside).isfinite().all()
    entries = mean.nonzero().tolist()
    for entry in entries[:: max(1, len(entries) // 4)]:
        outside = mean.clone()
        outside[tuple(entry)] += 0.05
        assert not r.contains(outside[None]) and r.value(outside[None]) == torch.inf
    assert not r.contains(2 * mean[None] - structures[:1] * 1.9)


@pytest.mark.parametrize("steps", [50, 300])
def test_long_chains_with_very_bad_scores_are_right(steps):
    for score in (-1000.0, 1000.0):
        t = torch.full((1, steps, 2, 2), score, dtype=D)
        expected = score * steps + (steps + 1) * torch.tensor(2.0, dtype=D).log()
        torch.testing.assert_close(CHAIN.conjugate(t)[0], expected, rtol=1e-13, atol=0)
        torch.testing.assert_close(CHAIN.mirror(t), torch.full_like(t, 0.25))


def test_changing_label_is_impossible_if_it_is_forbidden_however_bad_staying_is():
    t = torch.full((2, 8, 2, 2), -torch.inf, dtype=D)
    t[:, :, 0, 0], t[:, :, 1, 1] = -1e6, -2e6
    mask = torch.ones_like(t, dtype=torch.bool)
    mask[1, 5:] = False
    torch.testing.assert_close(CHAIN.conjugate(t, mask), torch.tensor([-8e6, -5e6], dtype=D))
    assert (CHAIN.mirror(t, mask)[:, :, 0, 0] == mask[:, :, 0, 0].double()).all()


def test_distributions_with_different_options_do_not_change_each_other():
    t = torch.zeros(1, 3, 3, dtype=D)
    for _ in range(2):
        assert ONE_ROOT.conjugate(t).exp().item() == pytest.approx(7) and PROJECTIVE.conjugate(
            t
        ).exp().item() == pytest.approx(12)


def test_scores_are_not_changed_and_need_no_gradient():
    for r, build in CASES.values():
        t = torch.zeros(2, *build(2)[0].shape)
        with torch.no_grad():
            r.mirror(t)
        r.conjugate(t), r.argmax(t), r.sample(t)
        assert not t.requires_grad and (t == 0).all()


def test_a_subclass_of_a_known_distribution_is_that_distribution():
    class Own(torch_struct.LinearChainCRF):
        pass

    t = torch.randn(2, 3, 2, 2, dtype=D)
    assert (
        torch.equal(Structured(Own).mirror(t), CHAIN.mirror(t)) and repr(Structured(Own)) == "Structured(Own)"
    )
    assert repr(ONE_ROOT) == "Structured(DependencyCRF, multiroot=False)"


def biased(r, **sizes):
    """A structured variable with a score for each entry."""
    g = unn.FactorGraph("biased", **sizes)
    y = g.variable("Y", "n a b", r)
    g.factor(Multilinear(y["i j k"], g.parameter("W", "n a b")["i j k"]))
    return g


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (
            lambda: Structured(torch_struct.NonProjectiveDependencyCRF),
            ("NonProjectiveDependencyCRF", "1e-5", "TreeEntropy"),
        ),
        (lambda: Structured(torch_struct.SentCFG), ("SentCFG", "three tensors", "TreeCRF")),
        (lambda: Structured(torch_struct.HMM), ("HMM", "LinearChainCRF")),
        (lambda: Structured("LinearChainCRF"), ("a class of torch_struct", "object of str")),
        (lambda: Structured(dict), ("a class of torch_struct", "dict")),
        (
            lambda: Structured(torch_struct.StructDistribution),
            ("StructDistribution", "not supported", "TreeCRF"),
        ),
        (lambda: Structured(torch_struct.TreeCRF, multiroot=False), ("multiroot", "DependencyCRF")),
        (lambda: unn.FactorGraph("g").variable("Y", "a b", CHAIN), ("'Y'", "a b", "needs 3")),
        (lambda: biased(CHAIN, n=4, a=2, b=3), ("'Y'", "'a'", "'b'")),
        (lambda: biased(ALIGNMENT, n=4, a=4, b=2), ("'Y'", "'b'", "3")),
    ],
)
def test_what_is_not_supported_is_refused_by_name(build, words):
    with pytest.raises(unn.DeclarationError, match=says(*words)):
        build()


def test_widths_of_segments_begin_at_one():
    with pytest.raises(unn.ObservationError, match=says("widths", "size 1")):
        SEGMENTS.conjugate(torch.zeros(1, 3, 1, 2, 2))


@pytest.mark.parametrize(
    ("r", "axes", "letters", "sizes", "lengths"),
    [
        (CHAIN, "step after before", "i a b", {"after": 2, "before": 2}, ["step"]),
        (SEGMENTS, "start width after before", "i w a b", {"width": 3, "after": 2, "before": 2}, ["start"]),
        pytest.param(PROJECTIVE, "head word", "h m", {}, ["head", "word"], marks=pytest.mark.slow),
        pytest.param(ONE_ROOT, "head word", "h m", {}, ["head", "word"], marks=pytest.mark.slow),
        (ALIGNMENT, "left right way", "i j o", {"way": 3}, ["left", "right"]),
        pytest.param(
            SPANS, "first last label", "i j l", {"label": 2}, ["first", "last"], marks=pytest.mark.slow
        ),
    ],
    ids=repr,
)
def test_energies_never_rise_and_padding_is_left_out(r, axes, letters, sizes, lengths):
    torch.manual_seed(0)
    g = unn.FactorGraph("structured", d=3, **sizes)
    y, z, s = (
        g.variable("Y", axes, r),
        g.variable("Z", "d", unn.SignedEntropy()),
        g.variable("S", axes, unn.SquaredNorm()),
    )
    g.factor(Multilinear(y[letters], s[letters]))
    g.factor(
        Multilinear(
            y[letters], s[letters], g.parameter("W", "d", init=torch.tensor([1.0, -0.5, 2.0]))["k"], z["k"]
        )
    )
    g.double()
    shape = [sizes.get(axis, 4) for axis in axes.split()]
    scores = torch.randn(2, *shape, dtype=D)
    given = {axis: torch.tensor([4, 2]) for axis in lengths}
    out = unn.infer(g, {"S": scores}, order=["Y", "Z"], iterations=6, lengths=given)
    assert (out.energy.diff(dim=0) <= 1e-9).all() and out.energy.isfinite().all()
    kept = tuple(slice(0, 2 if axis in lengths else None) for axis in axes.split())
    alone = unn.infer(g, {"S": scores[1:][(slice(None), *kept)]}, order=["Y", "Z"], iterations=6)
    torch.testing.assert_close(out["Y"][1][kept], alone["Y"][0])
    torch.testing.assert_close(out.energy[:, 1], alone.energy[:, 0])
    padded = out["Y"][1].clone()
    padded[kept] = 0
    assert (padded == 0).all()


# -- label sequences that are observed in part ---------------------------------------------------------------


def sequence_entries(labels, count):
    """The transitions of label sequences (sequences, words) as entries (sequences, step, after, before)."""
    one = torch.nn.functional.one_hot(labels, count).to(D)
    return one[:, 1:, :, None] * one[:, :-1, None, :]


@st.composite
def observed_chains(draw):
    """Scores of label sequences, lengths in words, and some entries of one sequence each."""
    words, count, batch = draw(st.integers(2, 4)), draw(st.integers(2, 3)), draw(st.integers(1, 3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    scores = draw(st.sampled_from([1.0, 30.0])) * torch.randn(
        batch, words - 1, count, count, dtype=D, generator=generator
    )
    lengths = torch.tensor(draw(st.lists(st.integers(2, words), min_size=batch, max_size=batch)))
    value = sequence_entries(torch.randint(count, (batch, words), generator=generator), count)
    share = draw(st.sampled_from([0.1, 0.4, 0.9]))
    return scores, lengths, value, torch.rand(value.shape, generator=generator) < share


def conditional(scores, value, where):
    """Log-partition and marginals of one chain given some of its entries, by enumeration."""
    steps, count = scores.shape[:2]
    every = sequence_entries(torch.tensor(list(product(range(count), repeat=steps + 1))), count)
    agreeing = every[((every == value) | ~where).flatten(1).all(1)]
    totals = (agreeing * scores).flatten(1).sum(1)
    return totals.logsumexp(0), (totals.softmax(0)[:, None] * agreeing.flatten(1)).sum(0).view(scores.shape)


def crf():
    g = unn.FactorGraph("crf").double()
    s = g.constant("s", "step after before")
    Y = g.variable("Y", "step after before", CHAIN)
    g.factor(Multilinear(s["i a b"], Y["i a b"]))
    return g


@settings(max_examples=30, deadline=None)
@given(observed_chains())
def test_chains_in_part_are_conditioned_exactly_ragged_or_not(case):
    scores, lengths, value, where = case
    out = unn.infer(
        crf(), {"s": scores, "Y": unn.Partial(value, where)}, order=["Y"], lengths={"step": lengths - 1}
    )
    for b, length in enumerate(lengths.tolist()):
        own = slice(0, length - 1)
        total, marginals = conditional(scores[b, own], value[b, own], where[b, own])
        torch.testing.assert_close(out["Y"][b, own], marginals, rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(out.energy[-1, b], -total, rtol=1e-6, atol=1e-6)
        seen = where[b, own]
        assert torch.equal(out["Y"][b, own][seen], value[b, own][seen])


@settings(max_examples=15, deadline=None)
@given(observed_chains())
def test_best_sequences_and_samples_have_what_is_observed(case):
    scores, _, value, where = case
    own = CHAIN.restricted(value, where)
    for chosen in (own.argmax(scores), own.sample(scores, generator=torch.Generator().manual_seed(0))):
        assert torch.equal(chosen[where], value[where])
        assert CHAIN.contains(chosen).all()
        assert own.contains(chosen).all()
    other = CHAIN.sample(torch.zeros_like(scores), generator=torch.Generator().manual_seed(1))
    assert torch.equal(own.contains(other), ((other == value) | ~where).flatten(1).all(1))


def test_one_row_of_scores_serves_observations_that_differ():
    scores = torch.randn(3, 2, 2, dtype=D, generator=torch.Generator().manual_seed(0))
    value = sequence_entries(torch.tensor([[0, 1, 0, 0], [1, 1, 0, 1]]), 2)
    where = torch.zeros_like(value, dtype=torch.bool)
    where[:, 1] = True
    out = unn.infer(crf(), {"s": scores, "Y": unn.Partial(value, where)}, order=["Y"])
    for b in range(2):
        torch.testing.assert_close(out["Y"][b], conditional(scores, value[b], where[b])[1])


def test_gradients_reach_the_scores_of_chains_in_part():
    scores = torch.randn(1, 3, 2, 2, dtype=D, generator=torch.Generator().manual_seed(0)).requires_grad_()
    value = sequence_entries(torch.tensor([[0, 1, 1, 0]]), 2)
    where = torch.zeros_like(value, dtype=torch.bool)
    where[0, 0, 1] = True
    own = CHAIN.restricted(value, where)
    torch.autograd.gradcheck(own.mirror, (scores,), fast_mode=True)


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({(0, 0, 0): 0.5}, ("neither 0 nor 1", "given (1) or forbidden (0)")),
        ({(1, 0, 0): 1.0, (1, 1, 0): 1.0}, ("position 1", "batch element 0", "two given")),
        ({(0, 0, 0): 1.0, (1, 0, 1): 1.0}, ("batch element 0", "no label sequence")),
        ({(2, a, b): 0.0 for a in range(2) for b in range(2)}, ("batch element 0", "no label sequence")),
    ],
)
def test_observations_that_no_sequence_has_are_refused_by_name(entries, words):
    value, where = torch.zeros(1, 3, 2, 2, dtype=D), torch.zeros(1, 3, 2, 2, dtype=torch.bool)
    for place, x in entries.items():
        value[0][place], where[0][place] = x, True
    with pytest.raises(unn.ObservationError, match=says("LinearChainCRF", *words)):
        unn.infer(crf(), {"s": torch.zeros(1, 3, 2, 2, dtype=D), "Y": unn.Partial(value, where)}, order=["Y"])


def test_other_structures_in_part_are_refused_by_the_axis():
    g = unn.FactorGraph("spans").double()
    s, Y = g.constant("s", "first last label"), g.variable("Y", "first last label", SPANS)
    g.factor(Multilinear(s["i j c"], Y["i j c"]))
    where = torch.zeros(1, 3, 3, 2, dtype=torch.bool)
    where[0, 0, 1] = True
    with pytest.raises(unn.ObservationError, match=says("'Y'", "'first'", "whole rows")):
        unn.infer(
            g,
            {
                "s": torch.zeros(1, 3, 3, 2, dtype=D),
                "Y": unn.Partial(torch.zeros(1, 3, 3, 2, dtype=D), where),
            },
            order=["Y"],
        )
