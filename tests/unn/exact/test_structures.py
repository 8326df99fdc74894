"""Structured variables are exact factors of a tree, whatever else their entries are joined to."""

import math
from itertools import product

import numpy as np
import pytest
import torch
import torch_struct
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

import unn
from factors import Budget, Multilinear, Structured, TreeEntropy
from unn.errors import ArgumentError, DeclarationError, InferenceError, ObservationError
from unn.exact.engine import ExactEngine
from unn.exact.options import ExactOptions


def labelled_trees():
    """Trees over three words whose arcs have labels, and a root that a flag depends on."""
    g = unn.FactorGraph("labelled", head=3, word=3, label=2)
    Y = g.variable("Y", "head word", TreeEntropy())
    L = g.variable("L", "head word | label", unn.Entropy())
    score = g.parameter("score", "head word", init=1.0)
    prior = g.parameter("prior", "label", init=1.0)
    joint = g.parameter("joint", "head word label", init=1.0)
    g.factor(Multilinear(score["h m"], Y["h m"]))
    g.factor(Multilinear(prior["l"], L["h m l"]))
    g.factor(Multilinear(joint["h m l"], Y["h m"], L["h m l"]))
    return g


def noisy_sequences():
    """Label sequences of length three, with a noisy observation of each transition."""
    g = unn.FactorGraph("sequences", step=2, after=2, before=2)
    Y = g.variable("Y", "step after before", Structured(torch_struct.LinearChainCRF))
    N = g.variable("N", "step after before", unn.BinaryEntropy())
    score = g.parameter("score", "step after before", init=1.0)
    noise = g.parameter("noise", "", init=torch.tensor(1.5))
    g.factor(Multilinear(score["t a b"], Y["t a b"]))
    g.factor(Multilinear(noise[""], N["t a b"], Y["t a b"]))
    return g


def coupled_subsets():
    """Two of four, each beside a chain of two spins."""
    g = unn.FactorGraph("subsets", item=4, link=2)
    Y = g.variable("Y", "item", Budget(2))
    s = g.variable("s", "item link", unn.SignedEntropy())
    score = g.parameter("score", "item", init=1.0)
    J = g.parameter("J", "item", init=1.0)
    g.factor(Multilinear(score["i"], Y["i"]))
    g.factor(Multilinear(J["i"], Y["i"], s["i l"]))
    g.factor(Multilinear(J["i"], s["i l"], s["i l+1"]))
    return g


KINDS = {"trees": labelled_trees, "sequences": noisy_sequences, "subsets": coupled_subsets}
DOMAINS = {"labelled": "L", "sequences": "N", "subsets": "s"}


def make(kind, seed=0):
    torch.manual_seed(seed)
    return KINDS[kind]().double()


def all_values(g):
    """All values of a graph and their logarithms of weights."""
    Y = g.variables["Y"].regularizer
    sizes = [g.sizes[a] for a in g.variables["Y"].axes]
    grid = torch.tensor(list(product([0.0, 1.0], repeat=math.prod(sizes))), dtype=torch.float64)
    structures = grid.view(-1, *sizes)
    structures = structures[Y.contains(structures)]
    name = DOMAINS[g.name]
    shape = [g.sizes[a] for a in g.variables[name].axes]
    if name == "L":
        states = torch.tensor(list(product(range(2), repeat=9)))
        others = torch.eye(2, dtype=torch.float64)[states].view(-1, 3, 3, 2)
    else:
        low = -1.0 if name == "s" else 0.0
        others = torch.tensor(list(product([low, 1.0], repeat=math.prod(shape))), dtype=torch.float64)
        others = others.view(-1, *shape)
    a, b = torch.cartesian_prod(torch.arange(len(structures)), torch.arange(len(others))).unbind(1)
    values = {"Y": structures[a], name: others[b]}
    return values, -g.energy(values)


def agreeing(values, observed):
    """Mask of the values that agree with partial evidence of one row."""
    same = torch.ones(len(values["Y"]), dtype=torch.bool)
    for name, x in observed.items():
        differs = (values[name] != x.value) & x.mask.view(*x.mask.shape, *[1] * (x.value.ndim - x.mask.ndim))
        same &= ~differs.flatten(1).any(1)
    return same


def some_evidence(g, values, seed):
    """The values of a random row at some nodes."""
    generator = torch.Generator().manual_seed(seed)
    row = int(torch.randint(len(values["Y"]), (), generator=generator))
    observed = {}
    for name in values:
        nodes = len(g.variables[name].node_axes) if name != "Y" else values[name].ndim - 1
        mask = torch.rand(1, *values[name].shape[1 : 1 + nodes], generator=generator) < 0.3
        observed[name] = unn.Partial(values[name][row, None], mask)
    return observed


@settings(max_examples=12)
@given(st.sampled_from(sorted(KINDS)), st.integers(0, 10**6), st.booleans())
def test_answers_equal_enumeration(kind, seed, partly):
    g = make(kind, seed)
    values, logs = all_values(g)
    observed = some_evidence(g, values, seed) if partly else {}
    logs = torch.where(agreeing(values, observed), logs, -torch.inf).detach()
    total = logs.logsumexp(0)
    p = (logs - total).exp()

    answer = unn.exact.marginals(g, observed)
    assert torch.allclose(answer.log_partition, total, atol=1e-9)
    for name, x in values.items():
        expected = (p.view(-1, *[1] * (x.ndim - 1)) * x).sum(0)
        assert torch.allclose(answer[name][0], expected, atol=1e-9), name
    best = unn.exact.best_values(g, observed)
    assert torch.allclose(best.energy, -logs.max(), atol=1e-9)
    assert torch.allclose(g.energy(dict(best.values)), best.energy, atol=1e-9)
    entropy = torch.special.entr(p).sum()
    assert torch.allclose(unn.exact.entropy(g, observed), entropy, atol=1e-8)
    count = unn.exact.log_partition(g, observed, semiring="count")
    assert round(float(count.exp())) == int((logs > -torch.inf).sum())
    assert torch.allclose(unn.exact.log_partition(g, observed, semiring="max"), logs.max(), atol=1e-9)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_derivatives_equal_those_of_enumeration(kind):
    g = make(kind)
    _, logs = all_values(g)
    parameters = list(g.parameters())
    expected = torch.autograd.grad(logs.logsumexp(0), parameters, create_graph=True)
    total = unn.exact.log_partition(g)
    gradients = torch.autograd.grad(total.sum(), parameters, create_graph=True)
    for x, y in zip(gradients, expected, strict=True):
        assert torch.allclose(x, y, atol=1e-9)
    direction = [torch.randn_like(p) for p in parameters]
    second, wanted = (
        torch.autograd.grad(sum((x * d).sum() for x, d in zip(own, direction, strict=True)), parameters)
        for own in (gradients, expected)
    )
    for x, y in zip(second, wanted, strict=True):
        assert torch.allclose(x, y, atol=1e-8)


@settings(max_examples=12)
@given(st.sampled_from(sorted(KINDS)), st.integers(0, 10**6), st.booleans())
def test_derivatives_of_the_entropy_and_of_the_largest_weight_are_those_of_enumeration(kind, seed, partly):
    g = make(kind, seed)
    values, logs = all_values(g)
    observed = some_evidence(g, values, seed) if partly else {}
    logs = logs[agreeing(values, observed)]
    entropy = -(logs.softmax(0) * logs.log_softmax(0)).sum()
    for own, expected in (
        (unn.exact.entropy(g, observed), entropy),
        (unn.exact.log_partition(g, observed, semiring="max"), logs.max()),
    ):
        pairs = (
            torch.autograd.grad(x.sum(), list(g.parameters()), retain_graph=True, materialize_grads=True)
            for x in (own, expected)
        )
        for x, y in zip(*pairs, strict=True):
            assert torch.allclose(x, y, atol=1e-8)


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("partly", [False, True])
def test_samples_have_the_exact_distribution(kind, partly):
    g = make(kind)
    values, logs = all_values(g)
    observed = some_evidence(g, values, 3) if partly else {}
    p = torch.where(agreeing(values, observed), logs, -torch.inf).detach().softmax(0)
    generator = torch.Generator().manual_seed(1)
    samples = unn.exact.sample(g, 4000, observed, generator=generator)
    # the sum of all values by a random code, in bins of nearly equal probability
    weights = codes_of(values)
    codes = sum(x.flatten(1) @ weights[name] for name, x in values.items())
    rows = sum(x[0].flatten(1) @ weights[name] for name, x in samples.items())
    order = codes.argsort()
    bins = (p[order].cumsum(0) * 20).clamp(max=19).long()
    place = torch.searchsorted(codes[order].contiguous(), rows.contiguous() - 1e-9)
    counts = torch.bincount(bins[place], minlength=20).double()
    expected = torch.zeros(20, dtype=torch.float64).index_add(0, bins, p[order]) * 4000
    frequent = expected > 0
    assert counts[~frequent].sum() == 0
    assert chisquare(counts[frequent].numpy(), expected[frequent].numpy()).pvalue > 1e-4


def codes_of(values):
    generator = torch.Generator().manual_seed(7)
    return {
        name: torch.randn(x[0].numel(), dtype=torch.float64, generator=generator)
        for name, x in values.items()
    }


def test_rows_of_a_batch_are_answered_as_they_are_alone():
    g = make("trees")
    values, _ = all_values(g)
    rows = [some_evidence(g, values, seed) for seed in range(5)]
    batch = {
        name: unn.Partial(
            torch.cat([row[name].value for row in rows]), torch.cat([row[name].mask for row in rows])
        )
        for name in rows[0]
    }
    together = unn.exact.marginals(g, batch)
    for number, row in enumerate(rows):
        alone = unn.exact.marginals(g, row)
        assert torch.allclose(together.log_partition[number], alone.log_partition[0], atol=1e-10)
        assert torch.allclose(together["Y"][number], alone["Y"][0], atol=1e-10)
        assert torch.allclose(together["L"][number], alone["L"][0], atol=1e-10)


def test_impossible_evidence_has_the_log_partition_minus_infinity():
    g = make("trees")
    two_heads = torch.zeros(1, 3, 3)
    two_heads[0, :2, 2] = 1
    no_head = torch.zeros(1, 3, 3)
    mask = torch.zeros(1, 3, 3, dtype=torch.bool)
    mask[0, :, 2] = True
    value = torch.cat([two_heads, no_head, torch.eye(3)[None]])
    answer = unn.exact.marginals(g, {"Y": unn.Partial(value, mask.expand(3, -1, -1))})
    assert (answer.log_partition[:2] == -torch.inf).all()
    assert answer.log_partition[2].isfinite()
    assert not answer["Y"].isnan().any()
    best = unn.exact.best_values(g, {"Y": unn.Partial(value, mask.expand(3, -1, -1))})
    assert best.energy[:2].eq(torch.inf).all()
    with pytest.raises(InferenceError, match="probability zero"):
        unn.exact.sample(g, 1, {"Y": unn.Partial(value, mask.expand(3, -1, -1))})


def test_a_whole_structure_may_be_given():
    g = make("sequences")
    values, logs = all_values(g)
    given = {"Y": values["Y"][:1]}
    same = (values["Y"] == values["Y"][:1]).flatten(1).all(1)
    assert torch.allclose(unn.exact.log_partition(g, given), logs[same].logsumexp(0), atol=1e-10)
    broken = torch.zeros_like(values["Y"][:1])
    assert unn.exact.log_partition(g, {"Y": broken}) == -torch.inf


def test_weights_that_underflow_count_by_their_logarithms():
    g = unn.FactorGraph("far", item=3, option=2)
    Y = g.variable("Y", "item", Budget(2))
    z = g.variable("z", "item | option", unn.Entropy())
    T = g.constant("T", "item option", torch.tensor([[-2000.0, -2001.0], [0.0, 0.5], [-3000.0, -2999.0]]))
    g.factor(Multilinear(T["i o"], Y["i"], z["i o"]))
    unit = math.log(2)
    one = [np.logaddexp(*row) for row in g.T.double().tolist()]
    expected = np.logaddexp.reduce([one[i] + one[j] + unit for i, j in ((0, 1), (0, 2), (1, 2))])
    assert float(unn.exact.log_partition(g).detach()) == pytest.approx(expected, abs=1e-9)
    assert unn.exact.marginals(g)["Y"][0].tolist() == pytest.approx([1, 1, 0], abs=1e-12)


def test_entries_that_other_nodes_couple_are_refused_with_their_names_and_may_be_conditioned_on():
    g = unn.FactorGraph("tagged", head=3, word=3, tag=2)
    Y = g.variable("Y", "head word", TreeEntropy())
    tag = g.variable("tag", "word | tag", unn.Entropy())
    T = g.parameter("T", "tag", init=1.0)
    g.factor(Multilinear(T["t"], Y["h m"], tag["m t"]))
    with pytest.raises(InferenceError, match=r"Y\[0, 0\] and Y\[1, 0\].*give tag\[0\]"):
        unn.exact.log_partition(g)
    given = {"tag": torch.eye(2)[torch.tensor([[0, 1, 1]])]}
    expected = 2 * g.T[1] + g.T[0] + math.log(9)
    assert torch.allclose(unn.exact.log_partition(g, given).float(), expected)


def test_rows_that_the_evidence_separates_differently_are_answered_in_one_batch():
    g = unn.FactorGraph("tagged", head=2, word=2, tag=2)
    Y = g.variable("Y", "head word", TreeEntropy())
    tag = g.variable("tag", "word | tag", unn.Entropy())
    T = g.parameter("T", "tag", init=1.0)
    g.factor(Multilinear(T["t"], Y["h m"], tag["m t"]))
    known = torch.tensor([[True, False], [False, True]])
    tags = unn.Partial(torch.eye(2)[torch.tensor([[0, 1], [0, 1]])], known)
    # the arcs to the word whose tag is hidden
    arcs = unn.Partial(torch.eye(2).expand(2, 2, 2), ~known[:, None].expand(2, 2, 2))
    together = unn.exact.log_partition(g, {"tag": tags, "Y": arcs})
    for k in range(2):
        own = {n: unn.Partial(x.value[k : k + 1], x.mask[k : k + 1]) for n, x in (("tag", tags), ("Y", arcs))}
        assert torch.allclose(unn.exact.log_partition(g, own), together[k])


def test_rows_that_are_all_impossible_and_structures_without_entries_have_answers():
    g = make("trees")
    never = torch.zeros(1, 3, 3, 2)
    never[0, 0, 0] = -torch.inf
    assert unn.exact.log_partition(g, scores={"Y": never}) == -torch.inf
    answer = unn.exact.marginals(g, scores={"Y": never})
    assert answer.log_partition == -torch.inf and not answer["Y"].isnan().any()
    assert unn.exact.entropy(g, scores={"Y": never}) == 0
    with pytest.raises(ArgumentError, match="semiring='foo' is unknown"):
        unn.exact.log_partition(g, semiring="foo")


def spans():
    """Binary trees over a sentence of three words, without labels."""
    g = unn.FactorGraph("spans", first=3, last=3, label=1)
    Y = g.variable("Y", "first last label", Structured(torch_struct.TreeCRF))
    g.factor(Multilinear(g.parameter("score", "first last label", init=1.0)["i j c"], Y["i j c"]))
    return g.double()


def test_structures_whose_single_entries_cannot_be_fixed_to_one_are_refused_by_name():
    g = spans()
    mask = torch.zeros(1, 3, 3, 1, dtype=torch.bool)
    mask[0, 0, 1] = True
    with pytest.raises(InferenceError, match="'Y': single entries of Structured"):
        unn.exact.log_partition(g, {"Y": unn.Partial(torch.ones(1, 3, 3, 1), mask)})
    with pytest.raises(InferenceError, match="'Y': the k best values are not known for Structured"):
        unn.exact.k_best_values(g, 2)
    best = unn.exact.best_values(g)
    assert best.energy.isfinite()
    assert torch.equal(unn.exact.k_best_values(g, 1)["Y"][:, 0], best["Y"])
    # a structure that is given leaves nothing to fix
    assert unn.exact.k_best_values(g, 2, {"Y": best["Y"]}).energy.isfinite().tolist() == [[True, False]]


def test_the_number_of_subsets_that_have_an_entry_and_not_another_is_a_binomial_coefficient():
    g = unn.FactorGraph("subsets", item=30)
    Y = g.variable("Y", "item", Budget(7))
    g.factor(Multilinear(g.parameter("score", "item", init=torch.zeros(30))["i"], Y["i"]))
    value, mask = torch.zeros(1, 30), torch.zeros(1, 30, dtype=torch.bool)
    value[0, :3], mask[0, :5] = 1, True
    total = unn.exact.log_partition(g, {"Y": unn.Partial(value, mask)}, semiring="count")
    assert float(total.exp()) == pytest.approx(math.comb(25, 4))


@settings(max_examples=10)
@given(st.sampled_from(sorted(KINDS)), st.integers(0, 10**6), st.booleans(), st.integers(1, 9))
def test_the_k_best_values_are_those_of_enumeration(kind, seed, partly, k):
    g = make(kind, seed)
    values, logs = all_values(g)
    observed = some_evidence(g, values, seed) if partly else {}
    agrees = agreeing(values, observed)
    energies = -logs[agrees].detach().sort(descending=True).values[:k]
    energies = torch.nn.functional.pad(energies, (0, k - len(energies)), value=torch.inf)
    best = unn.exact.k_best_values(g, k, observed)
    assert torch.allclose(best.energy[0], energies, atol=1e-9)
    possible = best.energy[0] < torch.inf
    answers = {name: x[0, possible] for name, x in best.values.items()}
    assert torch.allclose(g.energy(answers), energies[possible], atol=1e-9)
    flat = torch.cat([x.flatten(1) for x in answers.values()], 1)
    assert len(flat.unique(dim=0)) == len(flat)
    assert bool(agreeing(answers, observed).all())


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_engine_serves_structured_variables_and_learns_their_scores(kind):
    g = make(kind)
    values, logs = all_values(g)
    g = g.float()
    engine = ExactEngine()
    assert engine.refusal(g) == ""
    model = engine.build(g, ExactOptions(), {})
    rows = {name: x[:3].float() for name, x in values.items()}
    means = model.infer_values({}, 2, {})
    assert means["Y"].shape == (2, *values["Y"].shape[1:])
    observed = {n: torch.zeros(1, *rows[n].shape[1 : 1 + len(g.variables[n].node_axes)]).bool() for n in rows}
    loss = model.loss(rows, observed)
    assert float(loss.detach()) == pytest.approx(
        float((logs.logsumexp(0) - logs[:3].mean()).detach()), abs=1e-4
    )
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in g.parameters())
    with pytest.raises(ObservationError, match="2 rows are given, but 3 answers"):
        model.infer_values({"Y": values["Y"][:2].float()}, 3, {})
    nothing = torch.zeros_like(values["Y"][:1]).float()
    with pytest.raises(InferenceError, match="probability zero"):
        model.infer_values({"Y": nothing}, 1, {})


def test_belief_propagation_refuses_structures_by_name():
    with pytest.raises(DeclarationError, match="variable 'Y' is structured"):
        unn.belief.marginals(make("trees"))


@pytest.mark.parametrize("by_evidence", [False, True])
def test_subsets_of_which_none_is_possible_have_probability_zero(by_evidence):
    g = unn.FactorGraph("m", n=3)
    Y = g.variable("Y", "n", Budget(2))
    scores = torch.zeros(3) if by_evidence else torch.tensor([0.0, -1e30, -1e30])
    g.factor(Multilinear(g.constant("w", "n", scores)["i"], Y["i"]))
    seen = unn.Partial(torch.zeros(1, 3), torch.tensor([[True, True, False]]))
    given = {"Y": seen} if by_evidence else {}
    assert unn.exact.log_partition(g, given).tolist() == [-torch.inf]
    assert not unn.exact.marginals(g, given)["Y"].any()
    assert unn.exact.entropy(g, given).tolist() == [0]
