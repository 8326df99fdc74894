"""What is called solved is verified, whatever the model proposes."""

import math

import pytest
import torch
from support.sudoku_graph import declare_sudoku
from torch import nn

import unn
from factors import AllDifferent, Cardinality, Equation, Multilinear
from unn.engine import Attempt, CanSolve, SolvingOptions
from unn.errors import DeclarationError, UnnError

GRID = torch.tensor([[0, 1, 2, 3], [2, 3, 0, 1], [1, 0, 3, 2], [3, 2, 1, 0]])


def is_grid(digits):
    """Checked with sets of digits alone."""
    rows = digits.tolist()
    groups = [*rows, *zip(*rows, strict=True)]
    groups += [[rows[r + i][c + j] for i in (0, 1) for j in (0, 1)] for r in (0, 2) for c in (0, 2)]
    return all(set(group) == {0, 1, 2, 3} for group in groups)


class Proposals(nn.Module, CanSolve):
    """A model that proposes what a function draws."""

    def __init__(self, draw, steps=3):
        super().__init__()
        self.graph, self.draw, self.steps = declare_sudoku(2, 2), draw, steps
        self.begun = 0

    def attempt(self, given, count, sizes, steps, generator, number):
        self.begun += 1
        return Drawn(self, count, steps or self.steps, generator)


class Drawn(Attempt):
    def __init__(self, model, count, steps, generator):
        self.model, self.count, self.steps, self.generator = model, count, steps, generator

    def advance(self):
        if not self.steps:
            return None
        self.steps -= 1
        return {"X": self.model.draw(self.count, self.generator)}

    def keep(self, rows):
        self.count = len(rows)


def renamed(count, generator):
    """Valid grids: the digits of one grid, renamed at random."""
    return torch.eye(4)[torch.rand(count, 4, generator=generator).argsort(1)[:, GRID]]


def noise(count, generator):
    return torch.eye(4)[torch.randint(4, (count, 4, 4), generator=generator)]


BROKEN = {
    "random grids": noise,
    "zeros": lambda count, generator: torch.zeros(count, 4, 4, 4),
    "ones": lambda count, generator: torch.ones(count, 4, 4, 4),
    "not a number": lambda count, generator: torch.full((count, 4, 4, 4), math.nan),
    "halves of two grids": lambda count, generator: (
        (torch.eye(4)[GRID] + torch.eye(4)[3 - GRID]).expand(count, 4, 4, 4) / 2
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_nothing_that_breaks_a_constraint_is_called_solved(name):
    solutions = unn.solve(Proposals(BROKEN[name]), {}, count=50, options=SolvingOptions(tries=3))
    for k in solutions.solved.nonzero()[:, 0].tolist():
        assert is_grid(solutions["X"][k].argmax(-1))
    if name != "random grids":
        assert not bool(solutions.solved.any())
    assert solutions.violations.shape == (50,)


def test_a_node_without_a_value_is_not_solved_where_counts_allow_it():
    g = unn.FactorGraph("few", node=3, colour=2)
    X = g.variable("X", "node | colour", unn.Entropy())
    g.factor(Cardinality(X["n c"], each="c", at_most=2))
    model = Proposals(lambda count, generator: torch.zeros(count, 3, 2))
    model.graph = g
    mask = torch.tensor([[True, False, False]])
    solutions = unn.solve(model, {"X": unn.Partial(torch.eye(2)[torch.tensor([[0, 0, 0]])], mask)})
    # the answer that the evidence begins with is discrete, and here already right or wrong as a whole
    assert solutions.outcomes[0] != "solved" or bool((solutions["X"].sum(2) == 1).all())


def test_ten_thousand_proposals_give_no_invalid_answer():
    def mixed(count, generator):
        valid = renamed(count, generator)
        swapped = valid.clone()
        swapped[:, 0, :2] = valid[:, 0, [1, 0]]
        right = torch.rand(count, 1, 1, 1, generator=generator) < 0.5
        return torch.where(right, valid, swapped)

    options = SolvingOptions(tries=1, steps=1, at_once=1000)
    solutions = unn.solve(Proposals(mixed), {}, count=10_000, options=options)
    solved = solutions.solved.tolist()
    assert 4000 < sum(solved) < 6000
    for k, outcome in enumerate(solved):
        assert is_grid(solutions["X"][k].argmax(-1)) == outcome


def test_an_answer_that_ignores_the_evidence_is_not_solved():
    given = {"X": unn.Partial(torch.eye(4)[GRID][None], torch.ones(1, 4, 4, dtype=torch.bool))}
    other = torch.eye(4)[3 - GRID]
    model = Proposals(lambda count, generator: other.expand(count, 4, 4, 4))
    nodes = torch.zeros(1, 4, 4, dtype=torch.bool)
    nodes[0, 0, 0] = True
    for mask in (nodes, torch.ones(1, 4, 4, dtype=torch.bool)):
        evidence = {"X": unn.Partial(given["X"].value, mask)}
        solutions = unn.solve(model, evidence, options=SolvingOptions(tries=1))
        assert solutions.outcomes == (("unsolved",) if mask is nodes else ("solved",))
        if mask is not nodes:
            # the evidence itself is the answer
            assert torch.equal(solutions["X"][0], torch.eye(4)[GRID])


def test_contradictory_evidence_is_impossible_and_the_constraint_is_named():
    values = torch.eye(4)[torch.zeros(1, 4, 4, dtype=torch.long)]
    mask = torch.zeros(1, 4, 4, dtype=torch.bool)
    mask[0, 0, :2] = True
    model = Proposals(noise)
    solutions = unn.solve(model, {"X": unn.Partial(values, mask)})
    assert solutions.outcomes == ("impossible",) and "'rows'" in solutions.reasons[0]
    assert model.begun == 0 and int(solutions.tries[0]) == 0


def test_several_answers_are_different_and_valid():
    solutions = unn.solve(Proposals(renamed), {}, count=3, options=SolvingOptions(count=5, tries=60))
    for answers in solutions.answers:
        grids = [grid.argmax(-1) for grid in answers["X"]]
        assert len(grids) == 5 and all(is_grid(grid) for grid in grids)
        assert len({tuple(grid.flatten().tolist()) for grid in grids}) == 5


def test_solved_instances_are_not_tried_again_and_the_best_answer_is_kept():
    model = Proposals(renamed)
    solutions = unn.solve(model, {}, count=7)
    assert model.begun == 1 and solutions.tries.tolist() == [1] * 7
    worst = unn.solve(Proposals(noise), {}, count=4, options=SolvingOptions(tries=20))
    few = unn.solve(Proposals(noise), {}, count=4, options=SolvingOptions(tries=1))
    assert bool((worst.violations <= few.violations).all())


def test_a_seed_determines_the_answers():
    one, other = (unn.solve(Proposals(renamed), {}, count=3, options=SolvingOptions(seed=4)) for _ in "ab")
    assert torch.equal(one["X"], other["X"])
    third = unn.solve(Proposals(renamed), {}, count=3, options=SolvingOptions(seed=5))
    assert not torch.equal(one["X"], third["X"])


def test_a_time_limit_ends_the_call():
    options = SolvingOptions(seconds=0.3, tries=10**6)
    solutions = unn.solve(Proposals(BROKEN["ones"]), {}, count=2, options=options)
    assert solutions.seconds < 5 and solutions.outcomes == ("unsolved", "unsolved")


def test_instances_beyond_the_memory_limit_are_solved_in_parts():
    solutions = unn.solve(Proposals(renamed), {}, count=10, options=SolvingOptions(at_once=3))
    assert bool(solutions.solved.all()) and len(solutions["X"]) == 10


def test_a_graph_without_constraints_is_refused():
    g = unn.FactorGraph("free", node=3)
    g.variable("b", "node", unn.BinaryEntropy())
    model = Proposals(noise)
    model.graph = g
    with pytest.raises(unn.DeclarationError, match="no constraint"):
        unn.solve(model, {})


def test_the_size_of_an_axis_is_needed_beside_nodes_of_known_number():
    g = unn.FactorGraph("pigeons", hole=2, flag=1)
    X = g.variable("X", "pigeon | hole", unn.Entropy())
    g.variable("B", "flag", unn.BinaryEntropy())
    g.factor(AllDifferent(X["p h"], each=""))
    search, evidence = unn.Search(g, unn.SearchOptions(mode="depth-first")), {"B": torch.ones(1, 1)}
    with pytest.raises(DeclarationError, match="size of axis 'pigeon' of 'X' is unknown"):
        unn.solve(search, evidence)
    with pytest.raises(DeclarationError, match="size of axis 'pigeon' of 'X' is unknown"):
        unn.Solver(g, unn.SolverOptions(), {})
    assert unn.solve(search, evidence, sizes={"pigeon": 2}).outcomes == ("solved",)
    assert unn.solve(search, evidence, sizes={"pigeon": 3}).outcomes == ("impossible",)


def test_constraints_of_continuous_variables_are_refused_by_name():
    g = unn.FactorGraph("mixed", n=3, v=2)
    X, c = g.variable("X", "n | v", unn.Entropy()), g.variable("c", "n v", unn.SquaredNorm())
    g.factor(Cardinality(X["n v"], each="v", at_least=1))
    g.factor(Multilinear(c["n v"], X["n v"]))
    g.factor(Equation(c["n v"], X["n v"], within=0.1, name="balance"))
    model = unn.Solver(g, unn.SolverOptions(width=4), {})
    with pytest.raises(unn.DeclarationError, match="'balance' has the continuous variable 'c'"):
        unn.solve(model, {"c": torch.zeros(1, 3, 2)})


@pytest.mark.parametrize(
    "options",
    [
        {"tries": 0},
        {"count": 0},
        {"steps": 0},
        {"at_once": 0},
        {"seconds": 0},
        {"seconds": math.nan},
        {"seconds": math.inf},
        {"seed": -1},
        {"seed": 1.5},
    ],
)
def test_options_out_of_range_are_refused_by_name(options):
    with pytest.raises(UnnError, match=next(iter(options)).replace("_", "-")):
        unn.solve(Proposals(noise), {}, options=SolvingOptions(**options))


def test_constraints_without_groups_are_verified_as_well():
    class Odd(unn.Constraint):
        """The number of ones is odd."""

        def violations_of(self, values):
            return (values["b"].sum(1) % 2 == 0).long()

    g = unn.FactorGraph("bits", node=4)
    b = g.variable("b", "node", unn.BinaryEntropy())
    g.factor(Cardinality(b["n"], each="", at_least=1))
    g.factor(Odd(b["n"], name="odd"))
    model = Proposals(lambda count, generator: torch.randint(2, (count, 4), generator=generator).float())
    model.graph = g

    class Bits(Drawn):
        def advance(self):
            values = super().advance()
            return None if values is None else {"b": values["X"]}

    model.attempt = lambda given, count, sizes, steps, generator, number: Bits(model, count, 3, generator)
    solutions = unn.solve(model, {}, count=30)
    assert bool(solutions.solved.all()) and bool((solutions["b"].sum(1) % 2 == 1).all())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: unn.solve(None, {}), "CanSolve.*NoneType"),
        (lambda m: unn.solve(m, None), "evidence.*NoneType"),
        (lambda m: unn.solve(m, {"X": [1]}), "'X'.*list"),
        (lambda m: unn.solve(m, {}, options={"tries": 1}), "SolvingOptions.*dict"),
        (lambda m: unn.solve(m, {}, count=0), "count.*0"),
        (lambda m: unn.solve(m, {}, count=1.5), "count.*1.5"),
        (lambda m: unn.Search(m.graph, None), "SearchOptions.*NoneType"),
        (lambda m: unn.Solver(m.graph, unn.SearchOptions(), {}), "SolverOptions.*SearchOptions"),
        (lambda m: unn.RecurrentModel(m.graph, {}, {}), "RecurrentOptions.*dict"),
        (lambda m: unn.Perception(m.graph, unn.PerceptionOptions()), "no continuous variable"),
        (lambda m: unn.Search(unn.FactorGraph("empty"), unn.SearchOptions()), "no variables"),
    ],
)
def test_arguments_of_a_wrong_kind_are_refused_with_what_is_needed(call, words):
    with pytest.raises(unn.UnnError, match=words):
        call(unn.Search(declare_sudoku(2, 2), unn.SearchOptions()))


def test_models_of_discrete_values_refuse_a_graph_with_a_continuous_variable():
    g = declare_sudoku(2, 2)
    g.variable("height", "row", unn.SquaredNorm())
    for model in (
        lambda: unn.Search(g, unn.SearchOptions()),
        lambda: unn.Solver(g, unn.SolverOptions(), {}),
        lambda: unn.RecurrentModel(g, unn.RecurrentOptions(), {}),
    ):
        with pytest.raises(DeclarationError, match="'height'"):
            model()


def test_without_time_for_a_try_nodes_that_are_not_given_have_no_value():
    model = Proposals(lambda count, generator: GRID.expand(count, 4, 4))
    values = torch.nn.functional.one_hot(GRID[None], 4).float()
    given = torch.zeros(1, 4, 4, dtype=torch.bool)
    given[0, 0, 1] = True
    options = SolvingOptions(seconds=1e-9)
    solutions = unn.solve(model, {"X": unn.Partial(values, given)}, options=options)
    assert (
        solutions.outcomes == ("unsolved",) and not solutions.is_assigned[0] and int(solutions.tries[0]) == 0
    )
    assert int(solutions["X"].sum()) == 1 and float(solutions["X"][0, 0, 1, 1]) == 1
    assert int(solutions.violations[0]) > 0
    complete = unn.solve(model, {"X": values}, options=options)
    assert complete.outcomes == ("solved",) and complete.is_assigned[0]


def test_an_answer_with_a_value_everywhere_is_better_than_the_evidence_whatever_it_violates():
    wrong = torch.zeros(4, 4, dtype=torch.long)
    one_hot = torch.nn.functional.one_hot(wrong, 4).float()
    model = Proposals(lambda count, generator: one_hot.expand(count, 4, 4, 4))
    solutions = unn.solve(model, {}, count=1, options=SolvingOptions(tries=1))
    assert solutions.outcomes == ("unsolved",) and bool(solutions.is_assigned[0])
    assert torch.equal(solutions["X"][0].argmax(-1), wrong)
