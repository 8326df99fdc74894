"""Linear preconditioning: the network corrects the best linear estimate from noisy values and evidence."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import unn
from factors import Clique, Depends
from unn.diffusion import Diffusion
from unn.diffusion.preconditioning import linear_estimate, moments
from unn.networks import Denoiser
from unn.programs import Normal, trace


def conditional(rows, noise, mean, covariance):
    """Mean and deviation of each clean value of a Gaussian given all noisy ones, by its definition."""
    numbers = len(mean)
    observed = noise == 0
    joint = torch.zeros(2 * numbers, 2 * numbers, dtype=torch.float64)
    joint[:numbers, :numbers] = joint[:numbers, numbers:] = joint[numbers:, :numbers] = covariance
    joint[numbers:, numbers:] = covariance + noise.diag()
    gain = torch.linalg.solve(joint[numbers:, numbers:], joint[numbers:, :numbers]).mT
    variance = (joint[:numbers, :numbers] - gain @ joint[numbers:, :numbers]).diagonal()
    return mean + gain @ (rows - mean), torch.where(observed, 0, variance).clamp(min=0).sqrt()


@given(
    seed=st.integers(0, 10_000), numbers=st.integers(1, 6), log_sigma=st.floats(-5, 4), share=st.floats(0, 1)
)
@settings(max_examples=50, deadline=None)
def test_linear_estimates_are_the_conditionals_of_gaussians(seed, numbers, log_sigma, share):
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(numbers, numbers, generator=generator, dtype=torch.float64)
    covariance = root @ root.mT + 0.1 * torch.eye(numbers, dtype=torch.float64)
    mean, rows = torch.randn(2, numbers, generator=generator, dtype=torch.float64)
    sigma = torch.tensor(log_sigma).exp()
    observed = torch.rand(numbers, generator=generator) < share
    noise = torch.where(observed, 0.0, sigma.double() ** 2)
    base = linear_estimate(rows[None], noise[None], mean, covariance)
    estimate, deviation = conditional(rows, noise, mean, covariance)
    torch.testing.assert_close(base.mean[0], estimate, atol=1e-7, rtol=1e-7)
    torch.testing.assert_close(base.deviation[0], deviation, atol=2e-4, rtol=1e-6)
    # the innovation is the difference from the prediction by the others, over its deviation
    total = covariance + noise.diag()
    for k in range(numbers):
        others = [j for j in range(numbers) if j != k]
        weights = torch.linalg.solve(total[others][:, others], total[others, k])
        variance = total[k, k] - weights @ total[others, k]
        expected = (rows[k] - mean[k] - weights @ (rows - mean)[others]) / variance.sqrt()
        torch.testing.assert_close(base.innovation[0, k], expected, atol=1e-6, rtol=1e-6)


def test_rows_of_one_level_have_the_estimates_of_rows_of_their_own():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    covariance = torch.tensor([[1, 0.5, 0.2], [0.5, 1, 0.3], [0.2, 0.3, 1]], dtype=torch.float64)
    noise = torch.tensor([[0.0, 0.3, 0.3]], dtype=torch.float64)
    shared = linear_estimate(rows, noise, torch.zeros(3).double(), covariance)
    own = linear_estimate(rows, noise.repeat(5, 1), torch.zeros(3).double(), covariance)
    for name in ("mean", "deviation", "innovation"):
        torch.testing.assert_close(getattr(shared, name), getattr(own, name))


def test_moments_are_those_of_samples_averaged_over_permutations():
    rows = torch.randn(500, 4, generator=torch.Generator().manual_seed(1)).double() * torch.arange(1, 5)
    mean, covariance = moments(rows)
    torch.testing.assert_close(mean, rows.mean(0))
    torch.testing.assert_close(covariance, rows.mT.cov(correction=0), atol=1e-7, rtol=1e-7)
    cycle = torch.tensor([1, 2, 0, 3])
    swap = torch.tensor([1, 0, 2, 3])
    mean, covariance = moments(rows, [cycle, swap])
    every = torch.cat([rows[:, [*order, 3]] for order in ([0, 1, 2], [1, 2, 0], [2, 0, 1])])
    every = torch.cat([every, every[:, [1, 0, 2, 3]]])
    torch.testing.assert_close(mean, every.mean(0))
    torch.testing.assert_close(covariance, every.mT.cov(correction=0), atol=1e-7, rtol=1e-7)


def chain(t):
    x = t.sample("x0", Normal(2.0, 3.0))
    for k in range(1, 5):
        x = t.sample(f"x{k}", Normal(0.9 * x, 0.5))


def points(t):
    mean = t.sample("mean", Normal(0.0, 2.0))
    t.sample("x", Normal(mean, 1.0), shape=(5,))


def untrained(traced, **options):
    torch.manual_seed(0)
    model = Diffusion(Denoiser(traced.graph, width=16, depth=1, heads=2), **options)
    for layer in model.denoiser.write.values():
        torch.nn.init.zeros_(layer.weight)
        torch.nn.init.zeros_(layer.bias)
    model.prepare(traced.draw(20_000, seed=3))
    return model.eval()


@pytest.mark.slow
def test_a_network_that_corrects_nothing_samples_gaussian_conditionals_and_has_their_density():
    traced = trace(chain)
    model = untrained(traced)
    # x_k - 0.9 x_(k-1) are independent
    differences = torch.eye(5, dtype=torch.float64) - 0.9 * torch.ones(4, dtype=torch.float64).diag(-1)
    root = torch.linalg.inv(differences) @ torch.tensor([3.0, 0.5, 0.5, 0.5, 0.5]).double().diag()
    covariance, mean = root @ root.mT, 2.0 * 0.9 ** torch.arange(5).double()
    free, fixed = [0, 2, 3], [1, 4]
    gain = covariance[free][:, fixed] @ torch.linalg.inv(covariance[fixed][:, fixed])
    centres = mean[free] + gain @ (torch.tensor([4.0, 2.5]).double() - mean[fixed])
    deviations = (covariance[free][:, free] - gain @ covariance[fixed][:, free]).diagonal().sqrt()
    given_values = {"x1": torch.tensor([4.0]), "x4": torch.tensor([2.5])}
    samples = model.sample(given_values, 20_000, steps=30, seed=0, at_once=20_000).values
    for k, centre, deviation in zip(free, centres, deviations, strict=True):
        assert abs(float((samples[f"x{k}"].mean() - centre) / deviation)) < 0.05
        assert abs(float(samples[f"x{k}"].std() / deviation) - 1) < 0.05
    values = traced.draw(20, seed=5)
    torch.testing.assert_close(
        model.log_prob(values, steps=50).double(), traced.log_prob(values).double(), atol=0.1, rtol=0
    )


def test_moments_and_estimates_have_the_symmetries_of_the_graph():
    traced = trace(points)
    model = untrained(traced)
    assert model.linear is not None
    block = model.linear.covariance[1:, 1:]
    off = block[~torch.eye(5, dtype=torch.bool)]
    torch.testing.assert_close(off, off[:1].expand_as(off))
    torch.testing.assert_close(block.diagonal(), block.diagonal()[:1].expand(5))
    for layer in model.denoiser.write.values():
        torch.nn.init.normal_(layer.weight)
    for layer in model.linear.innovations.values():
        torch.nn.init.normal_(layer.weight)
    order = [3, 0, 4, 1, 2]
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    condition = model.condition({}, 4)
    permuted = model.denoise(x[:, [0, *(1 + k for k in order)]], torch.tensor(0.7), condition)
    plain = model.denoise(x, torch.tensor(0.7), condition)
    torch.testing.assert_close(permuted, plain[:, [0, *(1 + k for k in order)]], atol=1e-5, rtol=1e-5)


def test_without_samples_or_with_few_linear_is_scalar():
    traced = trace(chain)
    torch.manual_seed(0)
    linear = Diffusion(Denoiser(traced.graph, width=16, depth=2, heads=2)).eval()
    torch.manual_seed(0)
    scalar = Diffusion(Denoiser(traced.graph, width=16, depth=2, heads=2), preconditioning="scalar").eval()
    few = traced.draw(49, seed=0)
    for model in (linear, scalar):
        model.standardise(few)
    x = 3 * torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    sigma = torch.logspace(-2, 1.5, 6)
    condition = linear.condition({"x2": torch.tensor([1.0])}, 6)
    torch.testing.assert_close(
        linear.denoise(x, sigma, condition), scalar.denoise(x, sigma, condition), atol=1e-4, rtol=1e-4
    )


def test_dependent_numbers_and_computed_values_have_finite_estimates():
    def program(t):
        a = t.sample("a", Normal(0.0, 1.0))
        t.deterministic(2 * a, "b")
        t.sample("c", Normal(a, 1.0))

    traced = trace(program)
    model = untrained(traced)
    samples = model.sample({"b": torch.tensor([3.0])}, 2000, steps=20, seed=0).values
    assert float(samples["a"].mean()) == pytest.approx(1.5, abs=0.01)
    assert float(samples["a"].std()) < 0.02
    loss = model.train().loss(traced.draw(64, seed=1), {"a": torch.ones(64, dtype=torch.bool)})
    assert torch.isfinite(loss)


def test_auto_is_linear_for_few_real_numbers_of_static_size():
    def model_of(graph, **options):
        return Diffusion(Denoiser(graph, width=8, depth=1, heads=2), **options)

    def graph_of(regularizer, **sizes):
        g = unn.FactorGraph("g", **sizes)
        g.factor(Clique(g.variable("A", "n", regularizer)["i"]))
        return g

    assert model_of(graph_of(unn.SquaredNorm(), n=64)).linear is not None
    assert model_of(graph_of(unn.SquaredNorm(), n=65)).linear is None
    assert model_of(graph_of(unn.SquaredNorm(), n=65), preconditioning="linear").linear is not None
    assert model_of(graph_of(unn.SquaredNorm())).linear is None
    assert model_of(graph_of(unn.BinaryEntropy(), n=4)).linear is None
    assert model_of(graph_of(unn.SquaredNorm(), n=4), prediction="x0").linear is None
    assert model_of(graph_of(unn.SquaredNorm(), n=4), preconditioning="scalar").linear is None


def test_linear_preconditioning_is_refused_where_it_has_no_meaning():
    g = unn.FactorGraph("g")
    A = g.variable("A", "n", unn.SquaredNorm())
    B = g.variable("B", "n", unn.SquaredNorm())
    g.factor(Depends(A["i"], B["i"]))
    for options in ({}, {"prediction": "x0"}):
        with pytest.raises(unn.errors.ArgumentError, match="linear preconditioning needs"):
            Diffusion(Denoiser(g, width=8, depth=1, heads=2), preconditioning="linear", **options)
    with pytest.raises(unn.errors.ArgumentError, match="Did you mean .linear."):
        Diffusion(Denoiser(g, width=8, depth=1, heads=2), preconditioning="liner")


def test_weights_carry_the_moments():
    traced = trace(chain)
    model = untrained(traced)
    other = Diffusion(Denoiser(traced.graph, width=16, depth=1, heads=2))
    other.load_state_dict(model.state_dict())
    condition = model.condition({}, 3)
    x = torch.randn(3, 5)
    torch.testing.assert_close(
        model.denoise(x, torch.tensor(0.5), condition), other.eval().denoise(x, torch.tensor(0.5), condition)
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_moments_keep_their_precision_in_models_of_any_dtype(dtype):
    model = untrained(trace(chain)).to(dtype)
    assert model.linear is not None
    assert model.linear.mean.dtype == model.linear.covariance.dtype == torch.float64
    x = torch.randn(3, 5).to(dtype)
    assert torch.isfinite(model.denoise(x, torch.tensor(0.5), model.condition({}, 3))).all()


def test_few_samples_leave_no_moments_of_other_units():
    traced = trace(chain)
    model = untrained(traced)
    model.standardise({name: 10 * x + 5 for name, x in traced.draw(20, seed=0).items()})
    assert model.linear is not None and torch.equal(model.linear.covariance, torch.eye(5).double())


def test_fit_estimates_moments_from_as_many_examples_as_the_model_says():
    g = unn.FactorGraph("wide", n=110)
    g.factor(Clique(g.variable("A", "n", unn.SquaredNorm())["i"]))
    model = Diffusion(Denoiser(g, width=4, depth=1, heads=1), preconditioning="linear")

    def examples(count, generator):
        return {
            "A": torch.randn(count, 1, generator=generator) + torch.randn(count, 110, generator=generator)
        }

    unn.fit(model, examples, steps=1, batch=2, observed=["A"])
    assert model.linear is not None
    assert float(model.linear.covariance[0, 1]) == pytest.approx(0.5, abs=0.05)


def test_numbers_with_embeddings_of_their_own_have_moments_of_their_own():
    def program(t):
        t.sample("x", Normal(t.sample("m", Normal(0.0, 1.0)), np.array([0.5, 1.0, 2.0])))

    graph, draws = trace(program).graph, trace(program).draw(5000, seed=0)
    one = Diffusion(Denoiser(graph, width=8, depth=1, heads=2, embedding="independent"))
    one.standardise(draws)
    assert one.linear is not None
    variances = one.linear.covariance.diagonal()[1:]
    assert float(variances[2] / variances[0]) == pytest.approx(5 / 1.25, rel=0.1)


def test_state_of_versions_without_moments_is_that_of_scalar_preconditioning():
    graph = trace(chain).graph
    torch.manual_seed(0)
    scalar = Diffusion(Denoiser(graph, width=8, depth=1, heads=2), preconditioning="scalar").eval()
    linear = Diffusion(Denoiser(graph, width=8, depth=1, heads=2)).eval()
    linear.load_state_dict(scalar.state_dict())
    condition = linear.condition({"x1": torch.tensor([0.3])}, 4)
    x = torch.randn(4, 5)
    torch.testing.assert_close(
        linear.denoise(x, torch.tensor(0.5), condition), scalar.denoise(x, torch.tensor(0.5), condition)
    )
    with pytest.raises(RuntimeError, match="Missing key"):
        linear.load_state_dict({name: x for name, x in linear.state_dict().items() if name != "linear.mean"})
