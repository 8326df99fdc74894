"""Evidence of density zero is refused where given values decide it, and nowhere else."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.helpers import says

import unn
from unn.errors import ObservationError
from unn.programs import Beta, Categorical, Dirichlet, MultivariateNormal, Normal, Uniform


def program(t):
    width = t.sample("width", Uniform(0.0, 4.0))
    x = t.sample("x", Uniform(0.0, width * 1.0))
    t.deterministic(x * 2 + width, name="sum")
    t.sample("y", Normal(x, 1.0))


TRACED = unn.trace(program)


def tensors(values):
    return {name: torch.tensor(x) for name, x in values.items()}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"width": 1.0, "x": 2.0}, "'x' cannot have its value"),
        ({"width": 1.0, "x": 0.5, "sum": 2.5}, "'sum' is computed from values that are given"),
        ({"width": 0.0, "x": 1.0, "y": 1.0}, "'x' cannot have its value"),
    ],
)
def test_values_that_given_parents_exclude_are_refused(values, message):
    with pytest.raises(ObservationError, match=says("density zero", message)):
        TRACED.require_possible(tensors(values))


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"x": 2.0},
        {"x": 3.99999},
        {"width": 2.0, "x": 1.0, "y": 1e6},
        {"width": 1.0, "x": 0.3, "sum": 1.6},
        {"x": 2.0, "sum": 0.0},
        {"sum": 3.0, "y": 0.0},
    ],
)
def test_what_given_values_do_not_decide_is_accepted(values):
    TRACED.require_possible(tensors(values))


@given(st.integers(0, 10_000), st.sets(st.sampled_from(["width", "x", "sum", "y"])))
@settings(max_examples=30)
def test_draws_of_the_program_are_possible_evidence(seed, names):
    drawn = TRACED.draw(1, seed=seed)
    TRACED.require_possible({name: drawn[name] for name in names})


def test_computed_values_stand_for_their_parents():
    def noisy(t):
        a = t.sample("a", Normal(0.0, 1.0))
        b = t.deterministic(abs(a), name="b")
        t.sample("c", Uniform(0.0, b + 0.0))

    traced = unn.trace(noisy)
    traced.require_possible(tensors({"b": 2.0, "c": 1.0}))
    with pytest.raises(ObservationError, match=says("'c' cannot have its value")):
        traced.require_possible(tensors({"b": 2.0, "c": 3.0}))
    with pytest.raises(ObservationError, match=says("'c' cannot have its value")):
        traced.require_possible(tensors({"a": -2.0, "c": 3.0}))


def test_the_entry_of_an_array_is_named():
    def plate(t):
        top = t.sample("top", Uniform([1.0, 2.0, 3.0], 4.0))
        t.sample("z", Uniform(0.0, top))

    traced = unn.trace(plate)
    z = unn.Partial(torch.tensor([[5.0, 3.5, 0.0]]), torch.tensor([[False, True, True]]))
    top = unn.Partial(torch.tensor([[0.0, 3.0, 3.0]]), torch.tensor([[False, True, True]]))
    with pytest.raises(ObservationError, match=says("'z[1]'")):
        traced.require_possible({"z": z, "top": top})
    traced.require_possible({"z": z})


def test_boundaries_categories_and_joint_draws():
    def mixed(t):
        p = t.sample("p", Dirichlet([1.0, 1.0, 1.0]))
        t.sample("k", Categorical(p))
        t.sample("u", Beta(2.0, 2.0))
        t.sample("v", MultivariateNormal([0.0, 0.0], [[1.0, 0.5], [0.5, 1.0]]))

    traced = unn.trace(mixed)
    with pytest.raises(ObservationError, match=says("'k'")):
        traced.require_possible(tensors({"p": [0.0, 0.5, 0.5], "k": [1.0, 0.0, 0.0]}))
    with pytest.raises(ObservationError, match=says("'u'")):
        traced.require_possible(tensors({"u": 0.0}))
    half = unn.Partial(torch.tensor([[0.0, 9.0]]), torch.tensor([[True, False]]))
    traced.require_possible({**tensors({"p": [0.0, 0.5, 0.5], "k": [0.0, 1.0, 0.0]}), "v": half})
