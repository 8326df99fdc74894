"""unn.fit: the loop behind the command line, for Python."""

import signal
import subprocess
import sys

import pytest
import torch

import unn
from factors import Depends
from unn.engine import CanLearn
from unn.programs import Normal, trace_plates


def gaussian_graph(size=2):
    g = unn.FactorGraph("gaussian", i=size)
    g.factor(
        Depends(g.variable("y", "i", unn.SquaredNorm())["i"], g.variable("x", "i", unn.SquaredNorm())["i"])
    )
    return g


def draw(count, generator):
    """x ~ N(3, 1), y ~ N(2 x, 0.25)."""
    x = 3 + torch.randn(count, 2, generator=generator)
    return {"x": x, "y": 2 * x + 0.5 * torch.randn(count, 2, generator=generator)}


def diffusion(preconditioning="auto", **options):
    torch.manual_seed(0)
    return unn.Diffusion(
        unn.Denoiser(gaussian_graph(), width=16, depth=2, heads=2, **options),
        prediction="velocity",
        preconditioning=preconditioning,
    )


def program(t):
    x = t.sample("x", Normal(3, 1), shape=(2,))
    y = t.empty("y", (2,))
    for i in range(2):
        y[i] = t.deterministic(2 * x[i])


def tensors(model):
    return [x.detach().clone() for x in model.state_dict().values() if isinstance(x, torch.Tensor)]


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(tensors(a), tensors(b), strict=True))


def test_a_denoiser_of_a_gaussian_learns_its_regression():
    # linear preconditioning leaves nothing to learn
    model = diffusion("scalar")
    result = unn.fit(model, draw, steps=400, rate=5e-3, batch=64, ema=0.98)
    assert result.losses.shape == (400,) and result.losses[-100:].mean() < 0.85 * result.losses[:20].mean()
    given = torch.tensor([[2.0, 4.0]])
    samples = model.sample({"x": given}, 300, steps=20, sampler="dpm-solver", spacing="log-snr", seed=0)["y"]
    # E[y | x] = 2 x, whose prior standard deviation is 2.06
    assert (samples.mean(0) - 2 * given[0]).abs().max() < 0.7
    assert samples.std(0).max() < 1.5


def test_training_is_deterministic_under_a_seed_and_leaves_the_global_generator_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    models, losses = [], []
    for seed in (1, 1, 2):
        model = diffusion()
        torch.manual_seed(5)
        losses.append(unn.fit(model, draw, steps=4, batch=8, seed=seed).losses)
        assert torch.equal(torch.rand(3), expected)
        models.append(model)
    assert same(models[0], models[1]) and torch.equal(losses[0], losses[1])
    assert not same(models[0], models[2])


def test_it_is_the_loop_of_the_command_line():
    """The same weights as unn.training.fit with the same options."""
    from unn.training import Task, TensorExamples, TrainingConfig
    from unn.training import fit as loop

    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    y = x.sum(1, keepdim=True)

    class Regression(Task):
        def examples(self):
            return TensorExamples(x, y)

        def loss(self, network, batch):
            return ((network(batch[0]) - batch[1]) ** 2).mean()

    def line():
        torch.manual_seed(0)
        return torch.nn.Linear(3, 1)

    ours = line()
    result = unn.fit(
        ours, {"x": x, "y": y}, steps=23, batch=8, rate=0.1, clip=0.5, ema=0.9, seed=3, schedule="linear",
        loss=lambda net, values: ((net(values["x"]) - values["y"]) ** 2).mean(),
    )  # fmt: skip
    config = TrainingConfig(
        steps=23, batch=8, rate=0.1, clip=0.5, ema=0.9, seed=3, schedule="linear", log_every=1, device="cpu"
    )
    expected = loop(line(), Regression(), config)
    assert same(ours, expected.network)
    assert result.losses.tolist() == [entry["loss"] for entry in expected.history]
    assert ours.training and not result.interrupted and result.seconds > 0


@pytest.mark.parametrize("kind", ["tensors", "function", "program"])
def test_examples_are_tensors_a_function_or_a_program(kind):
    traced = unn.trace(program)
    torch.manual_seed(0)
    model = unn.Diffusion(unn.Denoiser(traced.graph, width=8, depth=1, heads=2))
    examples = {
        "tensors": traced.draw(50, seed=0),
        "function": lambda count, generator: traced.draw(count, generator),
        "program": traced,
    }[kind]
    result = unn.fit(model, examples, steps=3, batch=16)
    assert result.losses.shape == (3,) and result.losses.isfinite().all()
    assert model.offsets.tolist() == pytest.approx([3, 6], abs=0.7)


def test_a_model_is_standardised_once():
    model = diffusion()
    unn.fit(model, draw, steps=1, batch=4)
    before = model.offsets.clone(), model.scales.clone()
    assert before[0].tolist() == pytest.approx([6, 3], abs=0.3)
    unn.fit(
        model,
        lambda count, generator: {name: x + 100 for name, x in draw(count, generator).items()},
        steps=1,
        batch=4,
    )
    assert torch.equal(model.offsets, before[0]) and torch.equal(model.scales, before[1])


@pytest.mark.parametrize(
    "observed",
    ["any", "x", ["x"], [], lambda count, generator: {"x": torch.ones(count, 2, dtype=torch.bool)}],
)
def test_what_is_observed_can_be_said_in_every_way(observed):
    model = diffusion()
    seen = []
    original = model.loss
    model.loss = lambda values, where, **sizes: (seen.append(where), original(values, where, **sizes))[1]
    unn.fit(model, draw, steps=2, batch=400, observed=observed)
    where = seen[0]
    if observed == "any":
        counts = where.sum(1).bincount(minlength=4) / 400
        assert where.shape == (400, 4) and counts.tolist() == pytest.approx([0.25] * 4, abs=0.12)
    elif isinstance(where, torch.Tensor):
        x = model.frames.at().slots["x"].nodes
        assert (
            where.shape == (400, 4)
            and where[:, x].all() == bool(observed)
            and where.sum() == (800 if observed else 0)
        )
    else:
        assert set(where) == {"x"}


X = torch.zeros(4, 2)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"steps": 0}, unn.ArgumentError, "steps"),
        ({"steps": 2.5}, unn.ArgumentError, "steps"),
        ({"rate": -1}, unn.ArgumentError, "rate"),
        ({"observed": ["z"]}, unn.ArgumentError, "'z'"),
        ({"model": torch.nn.Linear(1, 1)}, unn.ArgumentError, "no method loss"),
        ({"examples": {}}, unn.DataError, "at least one variable"),
        ({"examples": {"x": X, "y": X[:2]}}, unn.DataError, "'y': 2"),
        ({"examples": X}, unn.DataError, "tensors by name"),
        ({"examples": lambda count, generator: X}, unn.DataError, "by variable"),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, dict) else str(x),
)
def test_what_cannot_be_trained_is_said(change, error, words):
    arguments = {"model": diffusion(), "examples": draw, "steps": 1, **change}
    with pytest.raises(error, match=words):
        unn.fit(arguments.pop("model"), arguments.pop("examples"), **arguments)


def test_draws_of_a_program_take_a_seed_or_a_generator():
    traced = unn.trace(program)
    by_seed = traced.draw(5, seed=3)
    by_generator = traced.draw(5, torch.Generator().manual_seed(3))
    assert all(torch.equal(by_seed[name], by_generator[name]) for name in by_seed)
    assert not torch.equal(by_seed["x"], traced.draw(5, seed=4)["x"])
    for wrong in (-1, 2**63, 0.5, "a", True):
        with pytest.raises(unn.ObservationError, match="a seed is a whole number"):
            traced.draw(5, seed=wrong)
    with pytest.raises(unn.ObservationError, match="not both"):
        traced.draw(5, torch.Generator(), seed=1)


STOPPED = """
import os, signal, sys, torch, unn
line = torch.nn.Linear(1, 1)

def loss(net, values):
    if loss.calls == 20:
        os.kill(os.getpid(), int(sys.argv[1]))
    loss.calls += 1
    return net(values["x"]).square().mean()

loss.calls = 0
fitted = unn.fit(line, {"x": torch.ones(8, 1)}, steps=10**6, loss=loss)
print(len(fitted.losses), fitted.interrupted)
"""


@pytest.mark.slow
def test_ctrl_c_ends_the_training_and_sigterm_the_program():
    done = {
        number: subprocess.run(
            [sys.executable, "-c", STOPPED, str(int(number))],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    steps, interrupted = done[signal.SIGINT].stdout.split()
    assert 20 < int(steps) < 100 and interrupted == "True"
    assert (done[signal.SIGTERM].returncode, done[signal.SIGTERM].stdout) == (-signal.SIGTERM, "")


def test_real_variables_of_latent_models_are_standardised_once():
    g = unn.FactorGraph("latent", layer=1, channel=2, n=2)
    z, x = g.variable("z", "layer channel", unn.SquaredNorm()), g.variable("x", "n", unn.SquaredNorm())
    g.factor(Depends(x["i"], z["l k"]))
    model = unn.AttentiveVAE(g, unn.LatentOptions(width=8, keys=4), {})

    def far(count, generator):
        return {"x": 1000 + 5 * torch.randn(count, 2, generator=generator)}

    def all_seen(count, generator):
        return {"x": torch.ones(1, 2, dtype=torch.bool)}

    assert not model.is_prepared()
    unn.fit(model, far, observed=all_seen, steps=2, batch=8)
    centre, deviation = model.observed.centre.clone(), model.observed.deviation.clone()
    torch.testing.assert_close(centre, torch.full((2,), 1000.0), atol=1, rtol=0)
    torch.testing.assert_close(deviation, torch.full((2,), 5.0), atol=0.5, rtol=0)
    unn.fit(model, lambda count, generator: {"x": torch.randn(count, 2)}, observed=all_seen, steps=2, batch=8)
    assert torch.equal(model.observed.centre, centre) and torch.equal(model.observed.deviation, deviation)


def test_a_model_without_parameters_learns_by_preparing():
    class Mean(torch.nn.Module, CanLearn):
        def prepare(self, values, **sizes):
            self.mean = values["x"].mean(0)

    model = Mean()
    result = unn.fit(model, {"x": torch.tensor([[1.0], [3.0]])}, observed=lambda n, g: {}, steps=3)
    assert len(result.losses) == 0 and float(model.mean) == 2


def exchangeable(t, points):
    mean = t.sample("mean", Normal(0, 1))
    t.sample("x", Normal(mean, 1), points)


def plated_model(plated):
    torch.manual_seed(0)
    return unn.Diffusion(unn.Denoiser(plated.graph, width=16, depth=2, heads=2), prediction="velocity")


@pytest.mark.parametrize(
    ("sizes", "observed"),
    [(None, "any"), (None, ["x"]), ({"points": 3}, "any"), (None, lambda count, generator: {})],
    ids=["any", "named", "one size", "function"],
)
def test_each_step_on_a_program_with_plates_draws_sizes_that_are_not_given(sizes, observed):
    plated = trace_plates(exchangeable, {"points": (1, 4)})
    model, batches = plated_model(plated), []
    original = model.loss
    model.loss = lambda values, where, **sizes: (
        batches.append((values, where)),
        original(values, where, **sizes),
    )[1]
    unn.fit(model, plated, steps=40, batch=4, observed=observed, sizes=sizes, seed=1)
    points = [values["x"].shape[1] for values, _ in batches]
    assert set(points) == ({3} if sizes else {1, 2, 3, 4})
    if isinstance(observed, list):
        assert all(
            torch.equal(where, torch.tensor([False] + [True] * n).expand(4, -1))
            for n, (_, where) in zip(points, batches, strict=True)
        )
    elif observed == "any":
        assert all(where.shape == (4, n + 1) for n, (_, where) in zip(points, batches, strict=True))


def test_training_on_plates_refuses_sizes_that_they_do_not_have():
    plated = trace_plates(exchangeable, {"points": (1, 4)})
    for wrong, words in (({"points": 9}, "1 to 4, got 9"), ({"pints": 2}, "Did you mean 'points'")):
        with pytest.raises(unn.ArgumentError, match=words):
            unn.fit(plated_model(plated), plated, steps=1, sizes=wrong)


@pytest.mark.slow
def test_posteriors_of_plates_of_several_sizes_are_those_of_closed_form_after_one_training():
    plated = trace_plates(exchangeable, {"points": (1, 4)})
    model = plated_model(plated)
    unn.fit(model, plated, steps=800, batch=128, rate=5e-3, ema=0.99, observed=["x"])
    for n in (1, 2, 4):
        x = torch.linspace(0, 1.5, n)[None]
        mean = model.sample({"x": x}, 2000, seed=0)["mean"]
        assert mean.mean().item() == pytest.approx(x.sum().item() / (n + 1), abs=0.08)
        assert mean.std().item() == pytest.approx((1 / (n + 1)) ** 0.5, rel=0.1)
