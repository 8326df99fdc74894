"""Losses of constraints at binary values, against golden values of the recurrent-transformer paper."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import factors
import unn

GOLDEN = Path(__file__).parents[2] / "golden" / "recurrent"


def golden(name):
    with np.load(GOLDEN / f"{name}.npz") as file:
        return {key: torch.as_tensor(file[key]) for key in file.files}


def sudoku(rows, columns):
    n = rows * columns
    g = unn.FactorGraph("sudoku", row=n, col=n, digit=n, band=n // rows, stack=n // columns)
    X = g.variable("X", "row col | digit", unn.Entropy())
    g.factor(factors.Cardinality(X["r c v"], each="r v"))
    g.factor(factors.Cardinality(X["r c v"], each="c v"))
    g.factor(factors.Cardinality(X["(band r) (stack c) v"], each="band stack v"))
    return g


def rows_graph(**bounds):
    g = unn.FactorGraph("rows", i=12, j=9)
    x = g.variable("x", "i j", unn.BinaryEntropy())
    g.factor(factors.Cardinality(x["i j"], each="i", **bounds))
    return g


CASES = [
    *((f"Ln{n}", {"equals": n}) for n in (1, 2, 4)),
    *(
        (f"Llu_{low}_{high}", {"at_least": low, "at_most": high})
        for low, high in ((1, 1), (2, 4), (0, 3), (3, 9), (5, 6))
    ),
]


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize(("name", "bounds"), CASES)
def test_losses_of_counts_and_their_gradients_are_those_of_the_paper(name, bounds, reduction):
    expected = golden("cardinality")
    x = expected["x"][None].requires_grad_()
    loss = unn.constraint_loss(rows_graph(**bounds), {"x": x}, reduction=reduction)
    (gradient,) = torch.autograd.grad(loss.sum(), x)
    torch.testing.assert_close(loss[0], expected[f"{name}_{reduction}"], rtol=0, atol=1e-12)
    torch.testing.assert_close(gradient[0], expected[f"{name}_{reduction}_grad"], rtol=0, atol=1e-12)


def test_the_losses_of_sudoku_and_their_gradients_are_those_of_the_paper():
    expected = golden("sudoku_loss")
    logits = expected["logits"].requires_grad_()
    probabilities = logits.softmax(-1)
    values = {"X": probabilities.view(5, 9, 9, 9)}
    by_board = unn.constraint_loss(sudoku(3, 3), values, reduction="mean")
    torch.testing.assert_close(by_board, expected["loss_per_board"], rtol=0, atol=1e-12)
    total = unn.constraint_loss(sudoku(3, 3), values, reduction="sum")
    torch.testing.assert_close(total, expected["paper_sum_loss_per_board"], rtol=0, atol=1e-12)
    gradients = torch.autograd.grad(by_board.mean(), (probabilities, logits))
    for gradient, name in zip(gradients, ("grad_probs", "grad_logits"), strict=True):
        torch.testing.assert_close(gradient, expected[name], rtol=0, atol=1e-12)


def test_losses_on_attention_and_their_gradients_are_those_of_the_paper():
    expected = golden("attention_loss")
    weights = expected["att_logits"].double().softmax(-1)
    adjacency = expected["adjacency"]
    by_head = unn.attention_loss(weights, adjacency)
    torch.testing.assert_close(by_head, expected["loss_paper_per_head"], rtol=0, atol=1e-9)
    mean = unn.attention_loss(weights, adjacency, reduction="mean").mean()
    torch.testing.assert_close(mean, expected["loss_code"], rtol=0, atol=1e-12)
    # by the mass that each query gives to its neighbours, which one key can stand for
    one = torch.ones(1, 1)
    for reduction, name in (("mean", "dcode_drowmass"), ("sum", "dpaper_drowmass_mean")):
        mass = expected["row_mass"].clone().requires_grad_()
        loss = unn.attention_loss(torch.diag_embed(mass), torch.eye(81), reduction=reduction).mean()
        (gradient,) = torch.autograd.grad(loss, mass)
        torch.testing.assert_close(gradient, expected[name], rtol=0, atol=1e-12)
    assert float(unn.attention_loss(one, one)) == 0


def test_losses_of_degrees_are_those_of_the_paper():
    expected = golden("path_loss")
    incidence = expected["node2edges"].double()
    first = torch.stack([row.nonzero().min() for row in incidence.T])
    second = torch.stack([row.nonzero().max() for row in incidence.T])
    g = unn.FactorGraph("grid", node=16, edge=24)
    used = g.variable("used", "edge", unn.BinaryEntropy())
    visited, ends = (g.variable(name, "node", unn.BinaryEntropy()) for name in ("visited", "ends"))
    g.index("src", "edge", first.tolist(), into="node")
    g.index("dst", "edge", second.tolist(), into="node")
    path = g.factor(factors.Path(used["e"], visited["src[e]"], visited["dst[e]"], ends["n"]))
    probabilities = expected["probs"].clone().requires_grad_()
    label = (expected["target"][:, 16:] == 1).double() @ incidence.T
    visited_by_label = (label > 0).double()
    ends_given = (expected["inp"][:, :16] == 1).double()
    on_path = (visited_by_label + ends_given > 0).double()
    values = {"used": unn.binarize(probabilities[:, 16:, 1]), "visited": on_path, "ends": ends_given}
    loss = (path.part_losses(values) * on_path).sum(1)
    torch.testing.assert_close(loss, expected["loss_paper_per_instance"], rtol=0, atol=1e-12)
    (gradient,) = torch.autograd.grad(loss.sum(), probabilities)
    torch.testing.assert_close(gradient, expected["grad_probs_paper_sum"], rtol=0, atol=1e-12)


@given(seed=st.integers(0, 1000), equals=st.integers(0, 9))
def test_binary_losses_are_the_squared_distances_of_counts_from_their_bounds(seed, equals):
    x = torch.rand(4, 12, 9, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    g = rows_graph(equals=equals)
    excess = (x >= 0.5).sum(2) - equals
    torch.testing.assert_close(unn.constraint_loss(g, {"x": x}), excess.square().sum(1).double())
    soft = unn.constraint_loss(g, {"x": x}, at="soft")
    torch.testing.assert_close(soft, (x.sum(2) - equals).square().sum(1))
    assert bool((g.constraints[0].violations_of({"x": x}) == (excess != 0).sum(1)).all())


def test_bits_are_rounded_up_from_one_half_on_with_the_gradient_of_the_identity():
    x = torch.tensor([0.49, 0.5, 0.51], requires_grad=True)
    y = unn.binarize(x)
    assert y.tolist() == [0.0, 1.0, 1.0]
    assert torch.autograd.grad(y.sum(), x)[0].tolist() == [1.0, 1.0, 1.0]


def test_nearest_values_of_categories_are_one_hot_where_no_probability_is_one_half():
    g = sudoku(2, 2)
    X = torch.full((1, 4, 4, 4), 0.25)
    assert float(unn.constraint_loss(g, {"X": X}).sum()) == 48
    assert float(unn.constraint_loss(g, {"X": X}, at="nearest").sum()) > 48


def test_spins_are_rounded_at_zero():
    g = unn.FactorGraph("spins", i=3)
    s = g.variable("s", "i", unn.SignedEntropy())
    g.factor(factors.Different(s["i"], s["i+1"]))
    values = {"s": torch.tensor([[0.1, -0.2, 0.3], [0.1, 0.2, 0.3]])}
    assert unn.constraint_loss(g, values).tolist() == [0, 2]


@pytest.mark.parametrize(
    ("options", "fact"), [({"reduction": "max"}, "'max'"), ({"at": "binari"}, "Did you mean 'binary'")]
)
def test_unknown_options_are_refused(options, fact):
    with pytest.raises(unn.ArgumentError, match=fact):
        unn.constraint_loss(sudoku(2, 2), {"X": torch.rand(1, 4, 4, 4)}, **options)


def test_a_graph_without_constraints_and_missing_values_are_refused():
    g = unn.FactorGraph("free", i=3)
    g.variable("x", "i", unn.BinaryEntropy())
    with pytest.raises(unn.DeclarationError, match="'free'"):
        unn.constraint_loss(g, {"x": torch.rand(1, 3)})
    with pytest.raises(unn.ObservationError, match="'X'"):
        unn.constraint_loss(sudoku(2, 2), {})
    with pytest.raises(unn.ArgumentError, match=r"\(3, 3\)"):
        unn.attention_loss(torch.rand(2, 4, 4), torch.eye(3))


def test_the_loss_of_named_constraints_is_that_of_a_graph_with_these_alone():
    g = sudoku(2, 2)
    names = [constraint.name for constraint in g.constraints]
    p = {"X": torch.rand(3, 4, 4, 4, generator=torch.Generator().manual_seed(0)).softmax(-1)}
    parts = [unn.constraint_loss(g, p, at="soft", names=[name]) for name in names]
    torch.testing.assert_close(torch.stack(parts).sum(0), unn.constraint_loss(g, p, at="soft"))
    with pytest.raises(unn.ArgumentError, match="rowz"):
        unn.constraint_loss(g, p, names=["rowz"])
    with pytest.raises(unn.ArgumentError, match="empty"):
        unn.constraint_loss(g, p, names=[])


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_a_constraint_over_an_empty_list_has_no_loss(reduction):
    g = unn.FactorGraph("graph", node=4, colour=3)
    X = g.variable("X", "node | colour", unn.Entropy())
    g.index("source", "edge", [], into="node")
    g.index("target", "edge", [], into="node")
    g.factor(factors.Different(X["source[e] c"], X["target[e] c"]))
    assert unn.constraint_loss(g, {"X": torch.rand(2, 4, 3).softmax(-1)}, reduction=reduction).tolist() == [
        0,
        0,
    ]


def test_an_implication_between_counts_of_everything_has_a_loss():
    g = unn.FactorGraph("implied", i=3)
    x, y = (g.variable(name, "i", unn.BinaryEntropy()) for name in "xy")
    condition = factors.Cardinality(x["i"], each="", at_least=1)
    g.factor(factors.Implies(condition, factors.Cardinality(y["i"], each="", equals=2)))
    one, none, two = torch.tensor([[1.0, 0, 0]]), torch.zeros(1, 3), torch.tensor([[1.0, 1, 0]])
    losses = [
        unn.constraint_loss(g, {"x": x, "y": y}).item() for x, y in ((one, one), (none, one), (one, two))
    ]
    assert losses[0] > 0 and losses[1:] == [0, 0]
