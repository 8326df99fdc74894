"""The energy of the parser: reference values in float64, the biaffine parser, descent, padding, trees
observed in part; what the loss computes."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.helpers import says

import unn
from factors import Multilinear, TreeEntropy
from factors.trees import matrix_tree
from problems.parsing.config import ParsingConfig
from problems.parsing.network import ParsingNetwork

GOLDEN = Path(__file__).parents[2] / "golden" / "structured_unn.npz"
ORDER = ["H", "M", "Y"]
PARAMETERS = ("V", "W_H", "b_H", "W_M", "b_M")
ROOTS = pytest.mark.parametrize("roots", ["single", "multi"])
DROPPED = pytest.mark.parametrize("dropped", [False, True], ids=["whole", "dropped"])
ROUNDS = pytest.mark.parametrize("k", [1, 2, 3])


def close(ours, reference, tolerance=1e-11):
    torch.testing.assert_close(ours.detach(), reference, rtol=tolerance, atol=tolerance)


def graph(weights, single_root=True, regularizer=unn.NonNegative):
    """Section 5 of the paper, declared here without an encoder."""
    hidden, width = weights["W_H"].shape
    g = unn.FactorGraph("parsing", width=width, hidden=hidden, modifier_hidden=hidden)
    X = g.variable("X", "node width", unn.SquaredNorm())
    H = g.variable("H", "node hidden", regularizer())
    M = g.variable("M", "word modifier_hidden", regularizer())
    Y = g.variable("Y", "node word", TreeEntropy(single_root, layout="rooted"))
    W_H = g.parameter("W_H", "hidden width", init=weights["W_H"])
    W_M = g.parameter("W_M", "modifier_hidden width", init=weights["W_M"])
    b_H = g.parameter("b_H", "hidden", init=weights["b_H"])
    b_M = g.parameter("b_M", "modifier_hidden", init=weights["b_M"])
    V = g.parameter("V", "hidden modifier_hidden", init=weights["V"])
    g.factor(Multilinear(H["i d"], W_H["d e"], X["i e"]))
    g.factor(Multilinear(M["j d"], W_M["d e"], X["j+1 e"]))
    g.factor(Multilinear(b_H["d"], H["i d"]))
    g.factor(Multilinear(b_M["d"], M["j d"]))
    g.factor(Multilinear(Y["i j"], H["i d"], V["d e"], M["j e"]))
    return g


def random_weights(seed, hidden=3, width=4, scale=0.7):
    generator = torch.Generator().manual_seed(seed)
    shapes = {
        "W_H": (hidden, width),
        "W_M": (hidden, width),
        "b_H": (hidden,),
        "b_M": (hidden,),
        "V": (hidden, hidden),
    }
    return {
        name: scale * torch.randn(shape, generator=generator, dtype=torch.float64)
        for name, shape in shapes.items()
    }


def arcs_here(lengths):
    """Which entries of Y exist, shape (batch, n + 1, n)."""
    n = int(lengths.max())
    return (torch.arange(n + 1) <= lengths[:, None])[:, :, None] & (torch.arange(n) < lengths[:, None])[
        :, None
    ]


def chosen_scores(scores, heads, lengths):
    here = torch.arange(heads.shape[1]) < lengths[:, None]
    return torch.where(here, scores.gather(1, heads[:, None])[:, 0], 0).sum(1)


@pytest.fixture(scope="module")
def reference():
    arrays = np.load(GOLDEN, allow_pickle=False)
    return {key: torch.as_tensor(arrays[key]) for key in arrays.files}


def inferred(z, roots, dropped, k):
    g = graph(z, roots == "single")
    lengths = z["lengths"]
    masks = {"H": z["mask_H"], "M": z["mask_M"]} if dropped else None
    return g, unn.infer(
        g,
        {"X": z["X"]},
        order=ORDER,
        iterations=k,
        lengths={"node": lengths + 1, "word": lengths},
        dropout=masks,
    )


# -- reference values ----------------------------------------------------------------------------------------


@ROOTS
@DROPPED
@ROUNDS
def test_every_value_and_every_gradient_equals_the_reference(reference, roots, dropped, k):
    z, prefix = reference, f"gs_{roots}{'_drop' if dropped else ''}_k{k}"
    g, out = inferred(z, roots, dropped, k)
    scores, lengths = out.preactivations["Y"], z["lengths"]
    for name in ORDER:
        close(out[name], z[f"{prefix}_{name}"])
    close(scores, z[f"{prefix}_scores"])
    trees, mask = g.variables["Y"].regularizer, arcs_here(lengths)
    partition = trees.conjugate(scores, mask)
    close(partition, z[f"{prefix}_logZ"])
    close(trees.entropy(scores, mask), z[f"{prefix}_entropy"])
    close(torch.diagonal_scatter(out["Y"][:, 1:], out["Y"][:, 0], dim1=1, dim2=2), z[f"{prefix}_Y_packed"])
    likelihood = chosen_scores(scores, z["gold_heads"], lengths) - partition
    close(likelihood, z[f"{prefix}_loglik"])
    # the reference differentiates minus the mean over sentences, as training does
    (-likelihood.mean()).backward()
    for name in PARAMETERS:
        close(getattr(g, name).grad, z[f"{prefix}_grad_{name}"])


@ROOTS
@DROPPED
def test_every_energy_equals_the_reference_and_is_infinite_until_there_is_a_tree(reference, roots, dropped):
    z = reference
    _, out = inferred(z, roots, dropped, 3)
    here = torch.arange(z["X"].shape[1]) <= z["lengths"][:, None]
    # the reference leaves out what X, which is given, adds to every energy alike
    constant = 0.5 * (z["X"] ** 2).sum(2).masked_fill(~here, 0).sum(1)
    expected = z[f"gs_{roots}{'_drop' if dropped else ''}_energy"]
    assert out.energy.T.shape == expected.shape == (4, 9)
    assert (out.energy[:2] == torch.inf).all() and (expected[:, :2] == torch.inf).all()
    close(out.energy.T[:, 2:] - constant[:, None], expected[:, 2:])


def written_out(z, roots, k, schedule):
    """Rounds of updates by hand; in the erroneous schedule, M is computed from the H of the round before."""
    trees, lengths = TreeEntropy(roots == "single", layout="rooted"), z["lengths"]
    mask = arcs_here(lengths)
    nodes, words = (
        (torch.arange(6) <= lengths[:, None])[..., None],
        (torch.arange(5) < lengths[:, None])[..., None],
    )
    X, V = z["X"], z["V"]
    H, M, Y = X.new_zeros(4, 6, 4), X.new_zeros(4, 5, 4), X.new_zeros(4, 6, 5)
    for _ in range(k):
        old = H
        H = torch.where(nodes, torch.relu(X @ z["W_H"].T + z["b_H"] + Y @ M @ V.T), 0)
        M = torch.where(
            words,
            torch.relu(X[:, 1:] @ z["W_M"].T + z["b_M"] + Y.mT @ (old if schedule == "jacobi" else H) @ V),
            0,
        )
        scores = torch.where(mask, H @ V @ M.mT, 0)
        Y = trees.mirror(scores, mask)
    return H, M, scores, Y


@ROOTS
@ROUNDS
@pytest.mark.parametrize("schedule", ["gs", "jacobi"])
def test_the_reference_is_what_a_loop_written_by_hand_gives(reference, roots, k, schedule):
    for name, ours in zip(("H", "M", "scores", "Y"), written_out(reference, roots, k, schedule), strict=True):
        close(ours, reference[f"{schedule}_{roots}_k{k}_{name}"])


@ROOTS
def test_the_schedule_of_the_authors_code_is_not_ours(reference, roots):
    """It computes M from the H of the round before: no difference in the first round, a worse energy in all
    others."""
    for k in (1, 2, 3):
        apart = (reference[f"jacobi_{roots}_k{k}_scores"] - reference[f"gs_{roots}_k{k}_scores"]).abs().max()
        assert apart == 0 if k == 1 else apart > 1e-2
    assert (reference[f"jacobi_{roots}_energy"][:, 5] > reference[f"gs_{roots}_energy"][:, 5]).all()


@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 7),
    activation=st.sampled_from([unn.NonNegative, unn.SignedEntropy, unn.Ball]),
)
@settings(max_examples=15, deadline=None)
def test_one_iteration_is_a_biaffine_parser(seed, n, activation):
    weights = random_weights(seed)
    g = graph(weights, regularizer=activation)
    x = torch.randn(2, n + 1, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    act = {
        unn.NonNegative: torch.relu,
        unn.SignedEntropy: torch.tanh,
        unn.Ball: lambda t: t / t.norm(dim=-1, keepdim=True).clamp(min=1),
    }[activation]
    heads = act(torch.nn.functional.linear(x, weights["W_H"], weights["b_H"]))
    modifiers = act(torch.nn.functional.linear(x[:, 1:], weights["W_M"], weights["b_M"]))
    expected = torch.nn.functional.bilinear(  # of every head with every modifier
        heads[:, :, None].expand(-1, -1, n, -1).contiguous(),
        modifiers[:, None].expand(-1, n + 1, -1, -1).contiguous(),
        weights["V"][None],
    )[..., 0]
    close(unn.infer(g, {"X": x}, order=ORDER, iterations=1).preactivations["Y"], expected)
    close(unn.Unrolled(g, "X", "Y", order=ORDER).preactivations(x), expected)


# -- descent and padding -------------------------------------------------------------------------------------


@st.composite
def ragged(draw):
    lengths = torch.tensor(draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    return (
        draw(st.integers(0, 10_000)),
        lengths,
        draw(st.sampled_from([unn.NonNegative, unn.SignedEntropy, unn.Ball])),
        draw(st.booleans()),
    )


def run(case, k=3, dropout=None):
    seed, lengths, activation, single = case
    generator = torch.Generator().manual_seed(seed)
    g = graph(random_weights(seed), single, activation)
    x = torch.randn(len(lengths), int(lengths.max()) + 1, 4, generator=generator, dtype=torch.float64)
    sizes = {"node": lengths + 1, "word": lengths}
    return (
        g,
        x,
        unn.infer(
            g, {"X": x}, order=ORDER, iterations=k, lengths=sizes, dropout=dropout, generator=generator
        ),
    )


@given(ragged(), st.booleans())
@settings(max_examples=25, deadline=None)
def test_the_energy_never_rises_from_the_first_tree_on(case, drop):
    _, _, out = run(case, 4, {"H": 0.4, "M": 0.2} if drop and case[2] is not unn.Ball else None)
    energy = out.energy[2:].detach()
    assert energy.isfinite().all() and out.energy[:2].isinf().all()
    assert (energy.diff(dim=0) <= 1e-9 * energy.abs()[:-1].clamp(min=1)).all()


@given(ragged())
@settings(max_examples=25, deadline=None)
def test_padding_changes_nothing(case):
    g, x, out = run(case)
    for b, n in enumerate(case[1].tolist()):
        alone = unn.infer(g, {"X": x[b : b + 1, : n + 1]}, order=ORDER, iterations=3)
        close(out["H"][b, : n + 1], alone["H"][0].detach())
        close(out["M"][b, :n], alone["M"][0].detach())
        close(out["Y"][b, : n + 1, :n], alone["Y"][0].detach())
        close(out.energy[:, b], alone.energy[:, 0].detach(), 1e-10)
        assert (
            not out["H"][b, n + 1 :].any()
            and not out["M"][b, n:].any()
            and not out["Y"][b, n + 1 :].any()
            and not out["Y"][b, :, n:].any()
        )


def test_values_that_diverged_in_one_round_do_not_come_back_in_a_later_one():
    net = network(1).float()
    with torch.no_grad():
        net.graph.V.fill_(1e6)
        net.graph.b_H.fill_(3.0)
        net.graph.b_M.fill_(3.0)

    def diverged(k):
        try:
            net.scores(torch.ones(1, 5, 6), torch.tensor([4]), k)
        except unn.InferenceError:
            return True
        return False

    outcomes = [diverged(k) for k in range(1, 9)]
    assert any(outcomes) and outcomes == sorted(outcomes)


# -- trees observed in part ----------------------------------------------------------------------------------


def trees_of_four(single_root=True):
    """All trees over four words as tuples of heads, 0 for the root."""

    def reaches_the_root(heads, word):
        for _ in range(4):
            word = heads[word - 1] if word else 0
        return word == 0

    every = product(range(5), repeat=4)
    return [
        heads
        for heads in every
        if all(reaches_the_root(heads, m) for m in range(1, 5)) and (not single_root or heads.count(0) == 1)
    ]


def partial(given_arcs=(), forbidden=(), n=4, dtype=torch.float64):
    """(head, word) pairs as an observation."""
    value, mask = torch.zeros(1, n + 1, n, dtype=dtype), torch.zeros(1, n + 1, n, dtype=torch.bool)
    for h, m in (*given_arcs, *forbidden):
        value[0, h, m - 1], mask[0, h, m - 1] = float((h, m) in given_arcs), True
    return unn.Partial(value, mask)


def test_the_trees_of_four_words_are_counted_right():
    """Cayley: n^(n-1) with one root, (n+1)^(n-1) with several."""
    assert (len(trees_of_four()), len(trees_of_four(False))) == (64, 125)


@given(
    seed=st.integers(0, 10_000),
    single=st.booleans(),
    tree=st.integers(0, 63),
    given_modifiers=st.lists(st.integers(1, 4), unique=True, max_size=4),
    forbidden=st.sets(st.tuples(st.integers(0, 4), st.integers(1, 4)), max_size=6),
)
@settings(max_examples=40, deadline=None)
def test_inference_given_some_arcs_is_that_over_the_trees_that_agree(
    seed, single, tree, given_modifiers, forbidden
):
    heads = trees_of_four()[tree]
    arcs = [(heads[m - 1], m) for m in given_modifiers]
    # so that one tree is left
    forbidden = {(h, m) for h, m in forbidden if heads[m - 1] != h}
    g = graph(random_weights(seed), single)
    x = torch.randn(1, 5, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    out = unn.infer(g, {"X": x, "Y": partial(arcs, forbidden)}, order=ORDER, iterations=2)
    agreeing = [
        t
        for t in trees_of_four(single)
        if all(t[m - 1] == h for h, m in arcs) and not any(t[m - 1] == h for h, m in forbidden)
    ]
    scores = out.preactivations["Y"][0].detach()
    totals = torch.stack([sum(scores[h, m] for m, h in enumerate(t)) for t in agreeing])
    expected = torch.zeros(5, 4, dtype=torch.float64)
    for chance, t in zip(torch.softmax(totals, 0), agreeing, strict=True):
        expected[list(t), range(4)] += chance
    close(out["Y"][0], expected)
    assert all(out["Y"][0, h, m - 1] == 1 for h, m in arcs) and all(
        out["Y"][0, h, m - 1] == 0 for h, m in forbidden
    )
    restricted = g.variables["Y"].regularizer.restricted(*vars(partial(arcs, forbidden)).values())
    close(restricted.conjugate(scores[None])[0], torch.logsumexp(totals, 0))
    best = tuple(restricted.argmax(scores[None])[0].argmax(0).tolist())
    assert best in agreeing
    close(totals[agreeing.index(best)], totals.max())
    assert (out.energy[2:].diff(dim=0) <= 1e-9).all()


def test_arcs_that_are_given_and_forbidden_at_random_still_never_let_the_energy_rise():
    g = graph(random_weights(0))
    x = torch.randn(1, 5, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    energy = unn.infer(
        g, {"X": x, "Y": partial([(2, 1)], [(0, 3), (1, 4)])}, order=ORDER, iterations=6
    ).energy[2:]
    assert energy.isfinite().all() and (energy.diff(dim=0) <= 1e-9).all()


@pytest.mark.parametrize(
    ("observed", "words"),
    [
        (partial([(0, 1), (2, 1)]), ["two given heads"]),
        (
            unn.Partial(
                torch.full((1, 5, 4), 0.5, dtype=torch.float64), torch.ones(1, 5, 4, dtype=torch.bool)
            ),
            ["neither 0 nor 1"],
        ),
    ],
    ids=["two heads", "halves"],
)
def test_arcs_that_contradict_each_other_are_refused(observed, words):
    x = torch.zeros(1, 5, 4, dtype=torch.float64)
    with pytest.raises(unn.ObservationError, match=says("trees", *words)):
        unn.infer(graph(random_weights(0)), {"X": x, "Y": observed}, order=ORDER)


IMPOSSIBLE = {
    "a cycle": partial([(1, 2), (2, 1)]),
    "its own head": partial([(1, 1)]),
    "two roots": partial([(0, 1), (0, 2)]),
    "no head left": partial((), [(h, 3) for h in range(5)]),
    "no root left": partial((), [(0, m) for m in range(1, 5)]),
}


@pytest.mark.parametrize("which", IMPOSSIBLE)
def test_arcs_that_no_tree_agrees_with_are_refused(which):
    observed = IMPOSSIBLE[which]
    with pytest.raises(unn.ObservationError, match=says("sentence 0", "no arborescence")):
        TreeEntropy(layout="rooted").restricted(observed.value, observed.mask)
    x = torch.zeros(1, 5, 4, dtype=torch.float64)
    with pytest.raises(unn.ObservationError, match=says("sentence 0", "no arborescence")):
        unn.infer(graph(random_weights(0)), {"X": x, "Y": observed}, order=ORDER)


# -- the network of the problem ------------------------------------------------------------------------------


class Given(torch.nn.Module):
    """Instead of an encoder: the words are their representations."""

    def forward(self, words):
        return words


def network(k, activation="relu", labels=0):
    torch.manual_seed(k)
    config = ParsingConfig(iterations=k, hidden=5, width=6, dropout=0.0, activation=activation)
    net = ParsingNetwork(config, Given(), labels).double()
    with torch.no_grad():
        net.graph.V.normal_()
        net.graph.b_H.normal_()
    return net


@ROUNDS
def test_training_factorises_once_for_each_update_of_the_tree(monkeypatch, k):
    """Footnote 3: the log-partition of the loss, its gradient and the marginals come from one matrix."""
    calls = []
    original = matrix_tree.invert
    monkeypatch.setattr(matrix_tree, "invert", lambda matrix: calls.append(len(matrix)) or original(matrix))
    net, lengths = network(k), torch.tensor([5, 2, 4])
    loss = net.loss(
        torch.randn(3, 6, 6, dtype=torch.float64), lengths, torch.zeros(3, 5, dtype=torch.int64), None
    )
    loss.backward()
    assert calls == [3] * k


@ROUNDS
def test_the_gradient_of_the_loss_by_the_scores_is_the_marginals_minus_the_gold_tree(monkeypatch, k):
    net, lengths = network(k), torch.tensor([4, 2])
    gold = torch.tensor([[2, 0, 2, 3], [0, 1, -1, -1]])
    seen = []
    original = net.scores

    def scores(*arguments):
        seen.append(original(*arguments))
        seen[0][1].retain_grad()
        return seen[0]

    monkeypatch.setattr(net, "scores", scores)
    net.loss(torch.randn(2, 5, 6, dtype=torch.float64), lengths, gold, None).backward()
    arc_scores = seen[0][1]
    arcs = net.trees.mirror(arc_scores.detach(), arcs_here(lengths))
    tree = torch.zeros(2, 5, 4, dtype=torch.float64)
    for b, m in (torch.arange(4) < lengths[:, None]).nonzero().tolist():
        tree[b, gold[b, m], m] = 1
    close(arc_scores.grad, (arcs - tree) / 2)


@ROUNDS
@pytest.mark.parametrize("activation", ["relu", "tanh", "ball"])
def test_the_loss_is_minus_the_likelihood_that_inference_gives(k, activation):
    net, lengths = network(k, activation), torch.tensor([5, 1, 3])
    x, gold = (
        torch.randn(3, 6, 6, dtype=torch.float64),
        torch.tensor([[2, 0, 2, 3, 2], [0, 2, -1, 0, 5], [3, 3, 0, -1, -1]]),
    )
    out = unn.infer(
        net.graph, {"words": x}, order=["X", *ORDER * k], lengths={"node": lengths + 1, "word": lengths}
    )
    scores = out.preactivations["Y"]
    partition = net.trees.conjugate(scores, arcs_here(lengths))
    likelihood = chosen_scores(scores, gold.clamp(min=0), lengths) - partition
    close(net.loss(x, lengths, gold, None), -likelihood.mean().detach())
    parse = net.parse(x, lengths)
    close(parse.marginals, out["Y"].detach())


@ROUNDS
def test_the_gradients_of_the_loss_are_those_of_finite_differences(k):
    net, lengths = network(k, "tanh"), torch.tensor([4, 3])
    x, gold = torch.randn(2, 5, 6, dtype=torch.float64), torch.tensor([[2, 0, 2, 3], [0, 1, 1, -1]])
    loss = net.loss(x, lengths, gold, None)
    for name, gradient in zip(
        PARAMETERS, torch.autograd.grad(loss, [getattr(net.graph, name) for name in PARAMETERS]), strict=True
    ):
        parameter = getattr(net.graph, name)
        direction = torch.randn_like(parameter)
        with torch.no_grad():
            sides = []
            for step in (1e-6, -2e-6, 1e-6):
                parameter += step * direction
                sides.append(net.loss(x, lengths, gold, None))
        torch.testing.assert_close(
            (gradient * direction).sum(), (sides[0] - sides[1]) / 2e-6, rtol=1e-6, atol=1e-7
        )


def test_the_best_tree_among_those_that_agree_with_given_arcs_is_found():
    net = network(2)
    x, lengths = torch.randn(1, 5, 6, dtype=torch.float64), torch.tensor([4])
    arcs = partial([(3, 1)], [(0, 3)])
    parse = net.parse(x, lengths, arcs=arcs)
    scores = net.scores(x, lengths, arcs=arcs)[1][0].detach()
    agreeing = [t for t in trees_of_four() if t[0] == 3 and t[2] != 0]
    assert tuple(parse.heads[0].tolist()) == max(
        agreeing, key=lambda t: float(sum(scores[h, m] for m, h in enumerate(t)))
    )
    with pytest.raises(unn.ObservationError, match="no arborescence"):
        net.parse(x, lengths, arcs=partial([(1, 2), (2, 1)]))


@pytest.mark.parametrize(
    ("activation", "bound"),
    [("relu", "depends on the weights"), ("tanh", "bounded below"), ("ball", "bounded below")],
)
def test_the_graph_says_whether_its_energy_has_a_minimum(activation, bound):
    verdict = network(1, activation).graph.boundedness(["words"])
    assert verdict.bound.value == bound and ("YHM" in verdict.unbounded) == (activation == "relu")


def test_the_sizes_of_a_tree_follow_from_one_of_its_axes():
    g = graph(random_weights(0))
    out = unn.infer(g, {"X": torch.zeros(2, 7, 4, dtype=torch.float64)}, order=ORDER)
    assert out["Y"].shape == (2, 7, 6) and out["M"].shape == (2, 6, 3)
    with pytest.raises(unn.UnnError):
        unn.infer(g, {"X": torch.zeros(2, 1, 4, dtype=torch.float64)}, order=ORDER)
