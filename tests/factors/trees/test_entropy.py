"""The entropy of arborescences keeps the contract of regularizers, in both layouts, with one root and with
several."""

from itertools import product

import pytest
import torch

import unn
from factors import Multilinear
from factors.trees.entropy import TreeEntropy
from unn.testing import RegularizerContract

D = torch.float64


class TreeContract(RegularizerContract):
    full_dimensional = False
    value_derivatives = 1
    accuracy = 1e-7
    examples = 5
    works_under_vmap = False
    compiles_whole = False
    draws = 4000


class TestPackedWithOneRoot(TreeContract):
    shape = (3, 2, 3, 3)

    def regularizer(self):
        return TreeEntropy()

    def padding(self):
        mask = torch.zeros(self.shape, dtype=torch.bool)
        mask[..., :2, :2] = True
        return mask, (slice(None), slice(None), slice(0, 2), slice(0, 2))


class TestPackedWithSeveralRoots(TestPackedWithOneRoot):
    def regularizer(self):
        return TreeEntropy(single_root=False)


class TestRootedWithOneRoot(TreeContract):
    shape = (3, 2, 4, 3)

    def regularizer(self):
        return TreeEntropy(layout="rooted")

    def padding(self):
        mask = torch.zeros(self.shape, dtype=torch.bool)
        mask[..., :3, :2] = True
        return mask, (slice(None), slice(None), slice(0, 3), slice(0, 2))


class TestRootedWithSeveralRoots(TestRootedWithOneRoot):
    def regularizer(self):
        return TreeEntropy(single_root=False, layout="rooted")


def trees(n, single_root):
    """All arborescences, packed."""
    matrices = []
    for heads in product(range(n), repeat=n):
        nodes = list(range(n))
        for _ in range(n):
            nodes = [heads[m] for m in nodes]
        roots = {m for m, h in enumerate(heads) if m == h}
        if set(nodes) <= roots and (len(roots) == 1 or not single_root):
            x = torch.zeros(n, n, dtype=D)
            x[list(heads), list(range(n))] = 1
            matrices.append(x)
    return torch.stack(matrices)


def rooted(x):
    """Packed arcs with the arcs from the root in a row of their own."""
    roots = torch.diagonal(x, dim1=-2, dim2=-1)
    return torch.cat([roots[..., None, :], x - torch.diag_embed(roots)], -2)


@pytest.mark.parametrize("layout", ["packed", "rooted"])
@pytest.mark.parametrize("single_root", [True, False])
@pytest.mark.parametrize("scale", [1.0, 30.0, 1000.0])
def test_entropy_and_marginals_are_those_of_all_trees(layout, single_root, scale):
    r, every = TreeEntropy(single_root, layout), trees(4, single_root)
    t = scale * torch.randn(5, 4, 4, dtype=D, generator=torch.Generator().manual_seed(0))
    chances = torch.softmax((t[:, None] * every).sum((2, 3)), 1)
    mean = torch.tensordot(chances, every, 1)
    t, mean = (t, mean) if layout == "packed" else (rooted(t), rooted(mean))
    torch.testing.assert_close(r.mirror(t), mean, atol=1e-10, rtol=0)
    torch.testing.assert_close(
        r.entropy(t), torch.special.entr(chances).sum(1), atol=1e-12 * max(scale, 1e3), rtol=0
    )
    torch.testing.assert_close(-r.value(r.mirror(t)), torch.special.entr(chances).sum(1), atol=1e-6, rtol=0)


@pytest.mark.parametrize("layout", ["packed", "rooted"])
def test_energies_never_rise_and_padding_is_left_out(layout):
    g = unn.FactorGraph("parser", k=3)
    more = int(layout == "rooted")
    y = g.variable("Y", "head word", TreeEntropy(layout=layout))
    z, s = g.variable("Z", "k", unn.SignedEntropy()), g.variable("S", "head word", unn.SquaredNorm())
    g.factor(Multilinear(y["h m"], s["h m"]))
    g.factor(
        Multilinear(
            y["h m"], s["h m"], g.parameter("w", "k", init=torch.tensor([1.0, -0.5, 2.0]))["k"], z["k"]
        )
    )
    g.double()
    scores = torch.randn(2, 4 + more, 4, dtype=D, generator=torch.Generator().manual_seed(0))
    lengths = {"head": torch.tensor([4, 2]) + more, "word": torch.tensor([4, 2])}
    out = unn.infer(g, {"S": scores}, order=["Y", "Z"], iterations=6, lengths=lengths)
    assert out.energy.isfinite().all() and (out.energy.diff(dim=0) <= 1e-9).all()
    alone = unn.infer(g, {"S": scores[1:, : 2 + more, :2]}, order=["Y", "Z"], iterations=6)
    torch.testing.assert_close(out["Y"][1, : 2 + more, :2], alone["Y"][0])
    torch.testing.assert_close(out.energy[:, 1], alone.energy[:, 0])


@pytest.mark.parametrize("layout", ["packed", "rooted"])
@pytest.mark.parametrize("start", [{}, {"Y": "uniform"}], ids=["absent", "uniform"])
def test_a_batch_of_trees_given_in_part_has_the_answers_of_its_elements(layout, start):
    heads = 4 if layout == "rooted" else 3
    g = unn.FactorGraph("bias", head=heads, word=3).double()
    y = g.variable("Y", "head word", TreeEntropy(layout=layout))
    g.factor(Multilinear(g.parameter("b", "head word", init=1.0)["h w"], y["h w"]))
    g.double()
    value, where = torch.zeros(3, heads, 3, dtype=torch.float64), torch.zeros(3, heads, 3, dtype=torch.bool)
    # the first is known in full: a chain from the root to the last word
    root = 0 if layout == "rooted" else None
    for word in range(3):
        value[0, (word if root is None else 0) if word == 0 else word - 1 + (root is not None), word] = 1
    where[0] = True
    value[1, 1, 0] = 1 if layout == "packed" else 0
    where[1, 1, 0] = True
    where[2, 0, 2] = True
    out = unn.infer(g, {"Y": unn.Partial(value, where)}, order=["Y"], initial=start)
    torch.testing.assert_close(out["Y"].sum(1), torch.ones(3, 3, dtype=torch.float64))
    for b in range(3):
        partial = unn.Partial(value[b : b + 1], where[b : b + 1])
        alone = unn.infer(g, {"Y": partial}, order=["Y"], initial=start)
        torch.testing.assert_close(alone["Y"], out["Y"][b : b + 1])
        torch.testing.assert_close(alone.energy[-1], out.energy[-1, b : b + 1])


@pytest.mark.parametrize("axes", [("head", "word"), ("head",), ("word",)])
@pytest.mark.parametrize("layout", ["packed", "rooted"])
def test_lengths_of_one_axis_are_those_of_both(layout, axes):
    g = unn.FactorGraph("scores")
    y, x = g.variable("Y", "head word", TreeEntropy(layout=layout)), g.variable("X", "h w", unn.SquaredNorm())
    g.factor(Multilinear(y["h w"], x["h w"]))
    more = int(layout == "rooted")
    scores = torch.randn(2, 4 + more, 4, generator=torch.Generator().manual_seed(0))
    lengths = {"head": torch.tensor([4, 2]) + more, "word": torch.tensor([4, 2])}
    out = unn.infer(g, {"X": scores}, order=["Y"], lengths={axis: lengths[axis] for axis in axes})
    alone = unn.infer(g, {"X": scores[1:, : 2 + more, :2]}, order=["Y"])
    torch.testing.assert_close(out["Y"][1:, : 2 + more, :2], alone["Y"])
    assert out["Y"][1].sum() == pytest.approx(2)


def test_lengths_that_no_tree_has_are_refused():
    g = unn.FactorGraph("scores")
    y, x = g.variable("Y", "head word", TreeEntropy()), g.variable("X", "h w", unn.SquaredNorm())
    g.factor(Multilinear(y["h w"], x["h w"]))
    lengths = {"head": torch.tensor([4, 3]), "word": torch.tensor([4, 2])}
    with pytest.raises(unn.ObservationError, match="related as head = word"):
        unn.infer(g, {"X": torch.zeros(2, 4, 4)}, order=["Y"], lengths=lengths)
