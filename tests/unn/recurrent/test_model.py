"""The recurrent transformer of a declaration: losses, verified answers, renamed values, bad input."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from support.sudoku_graph import declare_sudoku

import unn
from factors import AllDifferent, Cardinality, Connected, Table
from unn.errors import ArgumentError, DeclarationError, ObservationError
from unn.networks.labels import value_tokens
from unn.recurrent.model import RecurrentModel, chosen_by_content
from unn.recurrent.options import RecurrentOptions
from unn.recurrent.permutations import renamings, values_are_exchangeable
from unn.solver.layout import Family, Layout

from .test_network import GOLDEN

SMALL = RecurrentOptions(width=16, heads=2, recurrences=3, solving_steps=8, dropout=0.0)


def golden_model(**weights):
    with np.load(GOLDEN / "rt_sudoku_L1R2H4.npz") as content:
        values = {name: torch.from_numpy(content[name]) for name in content.files}
    options = RecurrentOptions(recurrences=2, dropout=0.0, **weights)
    model = RecurrentModel(declare_sudoku(3, 3), options, {}).double()
    model.network.load_published(
        {name.removeprefix("param/"): x for name, x in values.items() if name.startswith("param/")},
    )
    tokens, targets = values["tokens"].long(), values["targets"].long()
    digits = torch.where(tokens > 0, tokens - 1, targets)
    X = torch.nn.functional.one_hot(digits, 9).double().view(4, 9, 9, 9)
    return model, X, (tokens > 0).view(4, 9, 9), values


def test_the_loss_of_labels_is_that_of_the_published_code():
    model, X, given, values = golden_model()
    assert model.loss({"X": X}, {"X": given}).item() == pytest.approx(
        float(values["total_loss_ce_only"]), abs=1e-9
    )


def test_the_loss_with_constraints_and_attention_is_that_of_the_published_code():
    constraint, attention = 0.5, 0.3
    model, X, given, values = golden_model(constraint_weight=constraint, attention_weight=attention)
    assert values["hyper"].tolist() == [constraint, attention]
    total = float(values["total_loss"])
    assert model.loss({"X": X}, {"X": given}).item() == pytest.approx(total, abs=1e-9)
    unlabelled = model.unlabelled_loss({"X": unn.Partial(X, given)}, 4)
    assert unlabelled.item() == pytest.approx(total - float(values["total_loss_ce_only"]), abs=1e-9)


def test_unlabelled_examples_need_the_weight_of_a_constraint_loss():
    model = RecurrentModel(declare_sudoku(2, 2), SMALL, {})
    with pytest.raises(ArgumentError, match="constraint_weight"):
        model.unlabelled_loss({}, 2)


def test_a_share_of_labels_leaves_the_other_examples_their_constraint_losses():
    graph = declare_sudoku(2, 2)
    options = replace(SMALL, constraint_weight=0.5, labelled_share=0.4)
    torch.manual_seed(0)
    half = RecurrentModel(graph, options, {})
    whole = RecurrentModel(graph, replace(options, labelled_share=1.0), {})
    whole.load_state_dict(half.state_dict())
    X = F.one_hot(torch.randint(4, (50, 4, 4)), 4).float()
    seen = torch.rand(50, 4, 4) < 0.5
    labelled = chosen_by_content(value_tokens(half.layout.frame, X.flatten(1), seen.flatten(1)), 0.4)
    assert 0 < labelled.sum() < 50
    first, second = ({"X": X[rows]} for rows in (labelled, ~labelled))
    torch.testing.assert_close(
        half.loss(first, {"X": seen[labelled]}), whole.loss(first, {"X": seen[labelled]})
    )
    unlabelled = whole.unlabelled_loss({"X": unn.Partial(X[~labelled], seen[~labelled])}, len(X[~labelled]))
    torch.testing.assert_close(half.loss(second, {"X": seen[~labelled]}), unlabelled)


@given(st.floats(0, 1), st.integers(0, 2**31))
def test_rows_are_chosen_by_their_content_with_the_given_share(share, seed):
    tokens = torch.randint(10, (4000, 12), generator=torch.Generator().manual_seed(seed))
    chosen = chosen_by_content(tokens, share)
    assert abs(chosen.double().mean().item() - share) < 0.05
    order = torch.randperm(4000)
    assert torch.equal(chosen_by_content(tokens[order], share), chosen[order])


def test_few_labels_without_a_constraint_loss_are_refused():
    with pytest.raises(ArgumentError, match="constraint-weight"):
        replace(SMALL, labelled_share=0.5).check("recurrent")


def test_constraints_without_a_loss_are_left_out_of_training():
    def declare(*constraints):
        g = unn.FactorGraph("paths", edge=3, node=3)
        g.index("src", "edge", [0, 1, 2], into="node")
        g.index("dst", "edge", [1, 2, 0], into="node")
        used = g.variable("used", "edge", unn.BinaryEntropy())
        visited = g.variable("visited", "node", unn.BinaryEntropy())
        g.factor(Connected(used["e"], visited["src[e]"], visited["dst[e]"], name="connected"))
        if constraints:
            g.factor(Cardinality(visited["n"], each="", equals=2, name="two"))
        return g

    weighted = replace(SMALL, constraint_weight=1.0)
    model = RecurrentModel(declare("two"), weighted, {})
    assert model.unlabelled_loss({}, 2).isfinite()
    with pytest.raises(DeclarationError, match="differentiable"):
        RecurrentModel(declare(), weighted, {})


def test_gradients_of_the_state_stop_where_it_is_detached():
    X, given = torch.eye(4)[torch.tensor([0, 1, 2, 3])].expand(1, 4, 4, 4), torch.zeros(1, 4, 4).bool()
    gradients = []
    for detach in (0, 1):
        torch.manual_seed(0)
        options = RecurrentOptions(width=16, heads=2, recurrences=3, dropout=0.0, detach=detach)
        model = RecurrentModel(declare_sudoku(2, 2), options, {})
        model.loss({"X": X}, {"X": given}).backward()
        gradients.append(model.network.position.grad.clone())
    assert not torch.allclose(gradients[0], gradients[1])


def test_masked_attention_reaches_neighbours_alone():
    torch.manual_seed(0)
    options = RecurrentOptions(width=16, heads=2, recurrences=1, dropout=0.0, structure="graph")
    model = RecurrentModel(declare_sudoku(2, 2), options, {}).eval()
    mask = model.frame.masks("graph")
    tokens = torch.zeros(2, 16, dtype=torch.long)
    tokens[1, 15] = 3
    with torch.no_grad():
        difference = model.network(tokens, 1, mask).diff(dim=0)[0].abs().amax(1)
    reached = torch.from_numpy(declare_sudoku(2, 2).adjacency().matrix.toarray())[15].bool()
    assert bool((difference[~reached] < 1e-6).all()) and bool((difference[reached] > 1e-6).all())


def test_digits_of_sudoku_are_exchangeable_and_renaming_is_undone():
    layout = Layout(declare_sudoku(2, 2), {})
    assert values_are_exchangeable(layout, layout.frame.slots["X"])
    renaming = renamings(layout, 5, torch.Generator().manual_seed(0))
    rows = torch.randn(5, layout.candidates)
    torch.testing.assert_close(renaming.undo(renaming.apply(rows)), rows)
    assert not torch.equal(renaming.apply(rows), rows)


def test_values_that_a_constraint_distinguishes_are_not_renamed():
    g = unn.FactorGraph("one", node=3, colour=3)
    X = g.variable("X", "node | colour", unn.Entropy())
    g.factor(Cardinality(X["n c"], each="c", at_most=1, name="different"))
    assert values_are_exchangeable(Layout(g, {}), Layout(g, {}).frame.slots["X"])
    h = unn.FactorGraph("two", node=3, colour=3)
    Y = h.variable("Y", "node | colour", unn.Entropy())
    h.factor(Cardinality(Y["n c"], each="n", equals=1, name="all"))
    layout = Layout(h, {})
    slot = layout.frame.slots["Y"]
    layout.families[-1] = Family("first", torch.tensor([[0, 3, 6]]), (1, 1))
    assert not values_are_exchangeable(layout, slot)


def test_training_solves_small_puzzles_and_answers_are_verified():
    torch.manual_seed(0)
    graph = declare_sudoku(2, 2)
    base = torch.tensor([[0, 1, 2, 3], [2, 3, 0, 1], [1, 0, 3, 2], [3, 2, 1, 0]])

    def draw(count, generator):
        names = torch.rand(count, 4, generator=generator).argsort(1)
        return {"X": torch.eye(4)[names[:, base]]}

    model = RecurrentModel(graph, RecurrentOptions(width=48, recurrences=4, solving_steps=8, dropout=0.0), {})
    result = unn.fit(
        model,
        draw,
        steps=150,
        batch=32,
        rate=1e-2,
        observed=lambda count, generator: {"X": torch.rand(count, 4, 4, generator=generator) < 0.7},
    )
    assert float(result.losses[-5:].mean()) < 0.5 * float(result.losses[:5].mean())
    X = draw(20, torch.Generator().manual_seed(7))["X"]
    given = torch.rand(20, 4, 4, generator=torch.Generator().manual_seed(8)) < 0.7
    solutions = unn.solve(model, {"X": unn.Partial(X, given)})
    assert int(solutions.solved.sum()) >= 15
    for k in solutions.solved.nonzero()[:, 0].tolist():
        digits = solutions["X"][k].argmax(-1)
        groups = [
            *digits,
            *digits.T,
            *(digits[r : r + 2, c : c + 2].flatten() for r in (0, 2) for c in (0, 2)),
        ]
        assert all(sorted(group.tolist()) == [0, 1, 2, 3] for group in groups)
        assert torch.equal(digits[given[k]], X[k].argmax(-1)[given[k]])


def test_an_answer_does_not_depend_on_the_others_of_its_batch():
    torch.manual_seed(0)
    model = RecurrentModel(declare_sudoku(2, 2), SMALL, {}).eval()
    X = torch.eye(4)[torch.randint(4, (6, 4, 4))]
    given = unn.Partial(X, torch.rand(6, 4, 4) < 0.5)
    attempt = model.attempt({"X": given}, 6, {}, 8, torch.Generator().manual_seed(0), 0)
    attempt.advance()
    attempt.keep(torch.tensor([1, 4]))
    selected = attempt.advance()["X"]
    whole = model.attempt({"X": given}, 6, {}, 8, torch.Generator().manual_seed(0), 0)
    whole.advance()
    torch.testing.assert_close(selected, whole.advance()["X"][[1, 4]])
    assert whole.advance() is None


def test_bad_input_is_refused_by_name():
    model = RecurrentModel(declare_sudoku(2, 2), SMALL, {})
    with pytest.raises(ObservationError, match="'X'"):
        model.loss({"X": torch.zeros(2, 4, 4, 3)}, {})
    with pytest.raises(ObservationError, match="'Y'"):
        model.loss({"X": torch.eye(4).expand(1, 4, 4, 4)}, {"Y": torch.zeros(1, 4, 4).bool()})
    with pytest.raises(ArgumentError, match="multiple of the heads"):
        RecurrentOptions(width=10, heads=4).check("here")


def test_inferred_probabilities_are_those_of_the_published_network_with_the_evidence_unchanged():
    model, X, given, values = golden_model()
    inferred = model.eval().infer_values({"X": unn.Partial(X, given)}, len(X), {}, iterations=32)["X"]
    expected = values["logits_T32"].softmax(-1).view(X.shape)
    torch.testing.assert_close(inferred[~given], expected[~given], rtol=1e-9, atol=1e-9)
    assert torch.equal(inferred[given], X[given])


def test_values_that_an_excluded_candidate_or_a_constraint_without_groups_distinguishes_are_not_renamed():
    g = unn.FactorGraph("row", i=3, v=3)
    X = g.variable("X", "i | v", unn.Entropy())
    g.factor(AllDifferent(X["i v"], each=""))
    layout = Layout(g, {})
    assert values_are_exchangeable(layout, layout.frame.slots["X"])
    # the first two values only: the third is in no group of the table
    g.factor(Table(X["i v"], allowed=[(0,), (1,)]))
    layout = Layout(g, {})
    assert not values_are_exchangeable(layout, layout.frame.slots["X"])
    h = unn.FactorGraph("implied", i=3, v=3)
    X = h.variable("X", "i | v", unn.Entropy())
    h.factor(AllDifferent(X["i v"], each=""))
    h.factor(WithoutGroups(X["i v"]))
    layout = Layout(h, {})
    assert not values_are_exchangeable(layout, layout.frame.slots["X"])


class WithoutGroups(unn.Constraint):
    """The first node has not the first value."""

    def violations_of(self, values):
        return (values["X"][:, 0, 0] == 1).long()


def test_answers_have_no_dropout_while_training():
    model = RecurrentModel(declare_sudoku(2, 2), RecurrentOptions(width=8, heads=2, dropout=0.5), {}).train()
    one, other = (model.infer_values({}, 2, {}, 3)["X"] for _ in range(2))
    assert torch.equal(one, other) and model.training


def test_the_attention_loss_of_masked_attention_is_refused():
    options = RecurrentOptions(structure="graph", attention_weight=1.0, dropout=0.0)
    with pytest.raises(ArgumentError, match="masked attention gives all its weight"):
        RecurrentModel(declare_sudoku(2, 2), options, {})


@pytest.mark.parametrize("iterations", [0, -3, 1.5])
def test_numbers_of_recurrences_that_are_none_are_refused(iterations):
    model = RecurrentModel(declare_sudoku(2, 2), RecurrentOptions(width=8, heads=2), {})
    with pytest.raises(ArgumentError, match="whole number"):
        model.infer_values({}, 1, {}, iterations)
