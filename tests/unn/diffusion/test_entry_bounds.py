"""Entries of one variable with different domains: samples, evidence and densities hold each entry's own."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.diffusion import any_nodes, extreme_samples, train
from support.helpers import says

import unn
from unn.diffusion import Near, Within, guided_samples
from unn.diffusion.coordinates import EntryCoordinates
from unn.errors import DeclarationError, ObservationError
from unn.graph.bounds import EntryBounds
from unn.programs import Binomial, Exponential, Mixture, Normal, Poisson, Uniform, trace_plates


def program(t):
    u = t.sample("u", Uniform([0.0, 10.0], [1.0, 20.0]))
    k = t.sample("k", Binomial([2, 50], 0.5))
    x = t.empty("x", 3)
    x[0] = t.sample(Normal(0.0, 1.0))
    x[1] = t.sample(Exponential(1.0))
    x[2] = t.sample(Uniform(2.0, 3.0))
    c = t.empty("c", 2)
    c[0] = t.sample(Poisson(4.0))
    c[1] = t.sample(Binomial(3, 0.5))
    t.sample("y", Normal(u.sum() + k.sum() + x.sum() + c.sum(), 1.0))


@pytest.fixture(scope="module")
def traced():
    return unn.trace(program)


def model_of(traced, coordinates="auto"):
    torch.manual_seed(0)
    return unn.Diffusion(unn.Denoiser(traced.graph, width=8, depth=1, heads=1), coordinates=coordinates)


def test_the_graph_of_a_program_has_the_bounds_of_each_entry(traced):
    bounds = {name: variable.bounds for name, variable in traced.graph.variables.items()}
    inf = math.inf
    assert bounds == {
        "u": EntryBounds((2,), (0.0, 10.0), (1.0, 20.0)),
        "k": EntryBounds((2,), (0.0, 0.0), (2.0, 50.0)),
        "x": EntryBounds((3,), (-inf, 0.0, 2.0), (inf, inf, 3.0)),
        "c": EntryBounds((2,), (0.0, 0.0), (inf, 3.0)),
        "y": None,
    }
    assert traced.graph.variables["u"].regularizer.interval() == (0.0, 20.0)


@pytest.mark.parametrize(
    ("distribution", "expected"),
    [
        (Uniform([0.0, 0.0], [2.0, 2.0]), None),
        (Uniform([[0.0, 1.0]] * 3, 2.0), EntryBounds((1, 2), (0.0, 1.0), (2.0, 2.0))),
        # entries without an interior have the domain of all
        (Uniform([0.0, 1.0], [0.0, 3.0]), EntryBounds((2,), (0.0, 1.0), (3.0, 3.0))),
        (Mixture([0.5, 0.5], Uniform([0.0, 4.0], [1.0, 5.0])), None),
        (
            Mixture([0.5, 0.5], Uniform([[0.0, 4.0], [10.0, 14.0]], [[1.0, 5.0], [11.0, 15.0]])),
            EntryBounds((2,), (0.0, 10.0), (5.0, 15.0)),
        ),
        (Binomial([0, 3]), EntryBounds((2,), (0.0, 0.0), (0.0, 3.0))),
        (Binomial(0), EntryBounds((), (0.0,), (0.0,))),
    ],
)
def test_bounds_are_as_few_as_differ(distribution, expected):
    graph = unn.trace(lambda t: t.sample("x", distribution)).graph
    assert graph.variables["x"].bounds == expected


def test_a_draw_between_draws_is_bounded_by_the_bounds_of_each():
    def nested(t):
        low = t.sample("low", Uniform([0.0, 5.0], [1.0, 6.0]))
        t.sample("x", Uniform(low, [2.0, 9.0]))

    assert unn.trace(nested).graph.variables["x"].bounds == EntryBounds((2,), (0.0, 5.0), (2.0, 9.0))


def test_bounds_hold_at_every_size_of_a_plate():
    def plated(t, n):
        x = t.sample("x", Uniform([0.0, 10.0], [1.0, 20.0]), shape=(n, 2))
        t.sample("y", Normal(x.sum(), 1.0))

    plates = trace_plates(plated, {"n": (1, 6)})
    assert plates.graph.variables["x"].bounds == EntryBounds((1, 2), (0.0, 10.0), (1.0, 20.0))
    model = model_of(plates)
    model.standardise(plates.draw(200, seed=0, n=3))
    for n in (1, 5):
        x = model.sample(count=50, steps=2, seed=0, sizes={"n": n})["x"]
        assert x.shape == (50, n, 2)
        assert ((x >= torch.tensor([0.0, 10.0])) & (x <= torch.tensor([1.0, 20.0]))).all()


def test_an_upper_bound_alone_is_none():
    def below(t):
        low = t.sample("low", Normal())
        t.sample("x", Uniform(low, [5.0, 9.0]))
        t.sample("y", Uniform(low, 5.0), 2)

    variables = unn.trace(below).graph.variables
    assert variables["x"].bounds is None is variables["y"].bounds
    assert repr(variables["x"].regularizer) == "SquaredNorm()"


def test_bounds_of_shapes_that_do_not_fit_are_refused_as_parameters_are():
    def misfit(t):
        low = t.sample("low", Uniform(0.0, 1.0), shape=3)
        t.sample("x", Uniform(low, [2.0, 3.0]))

    with pytest.raises(DeclarationError, match=says("Uniform", "(3,)", "(2,)")):
        unn.trace(misfit)

    def listed(t):
        low = t.sample("low", Uniform(0.0, 1.0), shape=2)
        t.sample("x", Uniform([low, [0.5, 0.5]], [2.0, 3.0]))

    assert unn.trace(listed).graph.variables["x"].bounds == EntryBounds(
        (2, 2), (0, 0, 0.5, 0.5), (2, 3, 2, 3)
    )


def test_bounds_that_differ_along_a_plate_are_refused():
    def alternating(t, n):
        x = t.sample("x", Uniform(0.0, np.where(np.arange(n) % 2, 1.0, 5.0)), n)
        t.sample("y", Normal(x.sum(), 1.0))

    with pytest.raises(DeclarationError, match=says("'x'", "plate 'n'", "unn.trace")):
        trace_plates(alternating, {"n": (2, 6)})
    assert unn.trace(alternating, 4).graph.variables["x"].bounds.shape == (4,)


@pytest.mark.parametrize("coordinates", ["auto", "domain", "quantiles"])
def test_each_kind_of_coordinates_in_a_variable_has_its_own_offset_and_scale(coordinates):
    def together(t):
        x = t.empty("x", 17)
        x[0], x[1] = t.sample(Exponential(1.0)), t.sample(Uniform(0.0, 1.0))
        x[2:] = t.sample(Normal(100.0, 1.0), shape=15)
        t.sample("y", Normal(x.sum(), 1.0))

    def apart(t):
        a, b = t.sample("a", Exponential(1.0)), t.sample("b", Uniform(0.0, 1.0))
        x = t.sample("x", Normal(100.0, 1.0), shape=15)
        t.sample("y", Normal(a + b + x.sum(), 1.0))

    traced = unn.trace(together), unn.trace(apart)
    models = [model_of(program, coordinates) for program in traced]
    values = traced[0].draw(5000, seed=0)
    x = values["x"]
    models[0].standardise(values)
    models[1].standardise({"a": x[:, 0], "b": x[:, 1], "x": x[:, 2:], "y": values["y"]})
    # also evidence at the bounds
    at = torch.tensor([0.0, 1e-6, 0.01, 0.3, 0.999, 1.0])
    x = torch.cat([at[:, None].expand(-1, 2), torch.full((6, 15), 100.0)], 1)
    given = [{"x": x}, {"a": x[:, 0], "b": x[:, 1], "x": x[:, 2:]}]
    rows = [model.condition(given, 6).rows for model, given in zip(models, given, strict=True)]
    torch.testing.assert_close(*rows)
    frame = models[0].frames.at()
    inside = rows[0][2:5].double()
    back = models[0]._natural(inside, frame)[:, :2]
    torch.testing.assert_close(back, x[2:5, :2].double(), rtol=1e-3, atol=1e-3)
    # weights keep them
    again = model_of(traced[0], coordinates)
    again.load_state_dict(models[0].state_dict())
    torch.testing.assert_close(again.condition(given[0], 6).rows, rows[0])


@pytest.mark.parametrize("coordinates", ["auto", "domain", "quantiles"])
def test_samples_of_an_untrained_model_are_in_the_domain_of_each_entry(traced, coordinates):
    values = extreme_samples(model_of(traced, coordinates), traced.draw(500, seed=0))
    assert (traced.log_prob({name: x.double() for name, x in values.items()}) > -math.inf).all()


@given(st.integers(0, 2**31 - 1), st.floats(0.1, 100))
def test_coordinates_of_entries_are_invertible_and_have_the_slope_of_their_derivative(seed, width):
    generator = torch.Generator().manual_seed(seed)
    share = torch.rand(5, 4, generator=generator, dtype=torch.float64)
    low, high = (-math.inf, 3.0, -2.0, 1.0), (math.inf, math.inf, width - 2.0, 1.0 + width / 3)
    start = torch.tensor([0.0, 3.0, -2.0, 1.0], dtype=torch.float64)
    x = (start + share * torch.tensor([1.0, width, width, width / 3])).requires_grad_()
    for rate in (0.0, 1 / width):
        own = EntryCoordinates(EntryBounds((4,), low, high), rate=rate)
        y = own.forward(x)
        torch.testing.assert_close(own.backward(y), x, rtol=1e-6, atol=1e-6 * width)
        slope = torch.autograd.grad(y.sum(), x)[0]
        inside = (share > 1e-6) & (share < 1 - 1e-6)
        torch.testing.assert_close(own.log_slope(x)[inside], slope.log()[inside])


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("u", [[5.0, 15.0]], ["'u'", "entry [0]", "between 0 and 1", "got 5"]),
        ("u", [[0.5, 9.0]], ["'u'", "entry [1]", "between 10 and 20", "got 9"]),
        ("k", [[3.0, 40.0]], ["'k'", "entry [0]", "between 0 and 2", "got 3"]),
        ("x", [[-1.0, -1.0, 2.5]], ["'x'", "entry [1]", "got -1"]),
        ("x", [[-1.0, 1.0, 3.5]], ["'x'", "entry [2]", "between 2 and 3", "got 3.5"]),
        ("u", [[0.5, 25.0]], ["'u'", "entry [1]", "between 10 and 20", "got 25"]),
    ],
)
def test_evidence_outside_the_domain_of_its_entry_is_refused(traced, name, value, words):
    with pytest.raises(ObservationError, match=says(*words)):
        model_of(traced).sample({name: torch.tensor(value)}, 1, steps=1)


def test_evidence_at_the_bounds_of_its_entry_is_taken(traced):
    model = model_of(traced)
    model.standardise(traced.draw(200, seed=0))
    part = unn.Partial(torch.tensor([[5.0, 10.0]]), torch.tensor([[False, True]]))
    samples = model.sample({"u": part, "k": torch.tensor([[2.0, 0.0]])}, 4, steps=2, seed=0)
    assert (samples["u"][:, 1] == 10).all() and (samples["u"][:, 0] <= 1).all()
    assert torch.equal(samples["k"], torch.tensor([[2.0, 0.0]]).expand(4, -1))


def test_guides_hold_the_bounds_of_each_entry(traced):
    model = model_of(traced)
    model.standardise(traced.draw(500, seed=0))
    guides = [Near("u", torch.tensor([0.9, 11.0]), 0.5), Within("x", torch.tensor([-math.inf, 0.5, 2.2]))]
    samples = guided_samples(model, guides, count=200, steps=5, seed=0)
    values = {name: x.double() for name, x in samples.values.items()}
    assert (traced.log_prob(values) > -math.inf).all()
    assert (samples["x"][:, 1:] >= torch.tensor([0.5, 2.2])).all()


def test_embeddings_are_not_shared_along_axes_whose_bounds_differ():
    def prior(low, high):
        return unn.trace(lambda t: t.sample("x", Uniform(low, high), shape=(3, 2))).graph

    assert [s.size for s in prior([0.0, 1.0], 2.0).symmetries()] == [3]
    assert sorted(s.size for s in prior(0.0, 2.0).symmetries()) == [2, 3]


@pytest.mark.slow
def test_a_trained_model_has_the_exact_distribution_of_each_entry():
    def priors(t):
        u = t.sample("u", Uniform([0.0, -10.0, 100.0], [1.0, 20.0, 100.1]))
        t.sample("y", Normal((u - [0.0, 0.0, 100.0]) * np.array([4.0, 0.2, 40.0]), 1.0))

    traced = unn.trace(priors)
    torch.manual_seed(0)
    model = unn.Diffusion(unn.Denoiser(traced.graph, width=16, depth=2, heads=2))
    model.standardise(traced.draw(5000, seed=0))
    seeds = itertools.count(1)
    train(model, lambda: (traced.draw(256, seed=next(seeds)), any_nodes(256, 6)), 800, 5e-3)
    model.eval()
    u = model.sample(count=4000, steps=20, seed=0, at_once=4000)["u"].double()
    low, width = torch.tensor([0.0, -10.0, 100.0]), torch.tensor([1.0, 30.0, 0.1])
    share = (u - low) / width
    assert ((share > -1e-4) & (share < 1 + 1e-4)).all()
    # the mean of a uniform distribution is 1/2, its deviation 0.289
    torch.testing.assert_close(share.mean(0), torch.full((3,), 0.5).double(), atol=0.03, rtol=0)
    torch.testing.assert_close(share.std(0), torch.full((3,), 12**-0.5).double(), atol=0.02, rtol=0)
    # truncated normal posteriors, as near as those of a single entry are after so little training
    y = torch.tensor([[3.0, 1.0, 1.0]])
    exact = traced.posterior({"y": y}, 4000, seed=0)["u"].double()
    learned = model.sample({"y": y}, 4000, steps=20, seed=0, at_once=4000)["u"].double()
    assert (((learned.mean(0) - exact.mean(0)) / exact.std(0)).abs() < 0.2).all()
    torch.testing.assert_close(learned.std(0) / exact.std(0), torch.ones(3).double(), atol=0.25, rtol=0)
