"""Diffusion: what the network predicts, the loss, steps of this and of other libraries, training."""

import itertools
import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.diffusion import alike, declared, made, values_of, watched, with_network
from support.helpers import says
from support.problem_graphs import factorisation
from torch._dynamo.utils import counters

import unn
from factors import Depends
from unn.diffusion import SAMPLERS, Diffusion, LinearSteps, LogUniform
from unn.networks import Denoiser
from unn.networks.denoiser import SELF_CONDITIONINGS

EVERY_SAMPLER = pytest.mark.parametrize("sampler", list(SAMPLERS))
EVERY_SELF_CONDITIONING = pytest.mark.parametrize("self_conditioning", SELF_CONDITIONINGS)


def silent(*_):
    pass


# -- what the network predicts -------------------------------------------------------------------------------


def test_the_network_receives_values_of_unit_scale_and_a_level_of_the_order_of_one():
    seen = []
    model = with_network(
        made(),
        lambda rows, level, observed, _, memory: (
            seen.append((rows, level, observed, memory)) or torch.zeros_like(rows)
        ),
    )
    condition = model.condition({"A": values_of(1)["A"]}, 3)
    x, sigma = (
        torch.randn(3, condition.frame.numbers, dtype=torch.float64),
        torch.tensor([0.02, 1.0, 80.0], dtype=torch.float64),
    )
    out = model.denoise(x, sigma, condition)
    ((rows, level, observed, memory),) = seen
    expected = torch.where(condition.numbers, condition.rows, x / (1 + sigma**2).sqrt()[:, None])
    torch.testing.assert_close(rows, expected)
    torch.testing.assert_close(level, sigma.log() / 4)
    assert torch.equal(observed, condition.nodes) and memory is None
    # what is known comes back as it is
    assert torch.equal(out, condition.rows)
    torch.testing.assert_close(
        model.denoise(x, sigma[1], condition), model.denoise(x, sigma[1].expand(3), condition)
    )


@given(seed=st.integers(0, 10_000), log_sigma=st.floats(-5, 5))
@settings(max_examples=30, deadline=None)
def test_both_predictions_give_the_clean_sample_where_the_network_is_right(seed, log_sigma):
    generator = torch.Generator().manual_seed(seed)
    sigma = torch.tensor(math.exp(log_sigma), dtype=torch.float64)
    model = MODELS["x0"]
    condition = model.condition({}, 2)
    clean, noise = (
        torch.randn(2, condition.frame.numbers, generator=generator, dtype=torch.float64) for _ in range(2)
    )
    x = clean + sigma * noise
    # Salimans and Ho (2022): z = alpha x0 + s eps with alpha^2 + s^2 = 1, v = alpha eps - s x0; the network
    # gives -v
    alpha, s = 1 / (1 + sigma**2).sqrt(), sigma / (1 + sigma**2).sqrt()
    velocity = alpha * noise - s * clean
    for name, output in (("x0", clean), ("velocity", -velocity)):
        model = with_network(MODELS[name], lambda *_, output=output: output)
        torch.testing.assert_close(model.denoise(x, sigma, condition), clean, rtol=1e-9, atol=1e-9)
    # Karras et al. (2022) with data of unit variance: c_skip = 1 / (1 + sigma^2), c_out = sigma / sqrt(1 +
    # sigma^2)
    torch.testing.assert_close(x / (1 + sigma**2) - s * velocity, clean, rtol=1e-9, atol=1e-9)


MODELS = {name: made(prediction=name) for name in ("x0", "velocity")}


# -- the loss ------------------------------------------------------------------------------------------------


def perfect(model, clean, error=0.0):
    """The model with a network whose estimate is off by this error."""

    def network(rows, level, observed, frame, memory):
        estimate = clean + error
        if model.prediction == "x0":
            return estimate
        sigma = (4 * level).exp()[:, None]
        shrink = (1 + sigma**2).rsqrt()
        # at observed nodes, rows are no noisy values, and nothing is asked for
        output = (estimate - shrink * rows) / (sigma * shrink)
        if model.prediction == "mixed":
            for slot in frame.slots.values():
                if slot.kind != "real":
                    # scores of which the right option has by far the largest
                    output[:, slot.numbers] = 50 * estimate[:, slot.numbers]
        return output

    return with_network(model, network)


@pytest.mark.parametrize("prediction", ["mixed", "x0", "velocity"])
def test_the_loss_of_a_perfect_network_is_zero_and_counts_unobserved_nodes_only(prediction):
    values = values_of(5)
    model = made(prediction=prediction, schedule=LogUniform(0.1, 10))
    observed = torch.rand(5, 16, generator=torch.Generator().manual_seed(0)) < 0.5
    clean, condition = model.example(values, observed)
    assert float(perfect(model, clean).loss(values, observed)) < 1e-12
    assert float(perfect(model, clean, 100.0 * condition.numbers).loss(values, observed)) < 1e-12
    assert float(perfect(model, clean, 0.1 * ~condition.numbers).loss(values, observed)) > 1e-3
    everything = torch.ones(5, 16, dtype=torch.bool)
    assert float(perfect(model, clean, 1.0).loss(values, everything)) == 0


@pytest.mark.parametrize("node", range(0, 16, 3))
def test_each_node_counts_the_same_however_many_numbers_it_has(node):
    values = values_of(3)
    model = made()
    observed = torch.zeros(3, 16, dtype=torch.bool)
    observed[:, (node + 1) % 16] = True
    clean, condition = model.example(values, observed)
    here = (condition.frame.node_of_number == node).double()
    assert float(perfect(model, clean, 2.0 * here).loss(values, observed)) == pytest.approx(4 / 15)


def test_the_loss_is_the_mean_square_of_the_error_of_the_estimates():
    values, model = values_of(4), made(schedule=LogUniform(0.5, 2))
    observed = {"A": torch.tensor([[True, False, True, False]]), "B": torch.ones(4, 1, dtype=torch.bool)}
    nodes = torch.cat(
        [
            observed["A"].expand(4, -1),
            torch.zeros(4, 4).bool(),
            torch.ones(4, 4).bool(),
            torch.zeros(4, 4).bool(),
        ],
        1,
    )
    clean, condition = model.example(values, observed)
    assert torch.equal(condition.nodes, nodes) and torch.equal(
        condition.rows, torch.where(condition.numbers, clean, 0)
    )
    torch.manual_seed(3)
    loss = model.loss(values, observed)
    torch.manual_seed(3)
    assert torch.equal(model.loss(values, nodes), loss)
    torch.manual_seed(3)
    sigma = model.schedule.draw(4).double()
    estimate = model.denoise(clean + sigma[:, None] * torch.randn_like(clean), sigma, condition)
    per_number = (estimate - clean).square().detach()
    per_node = torch.zeros(4, 16, dtype=torch.float64).index_add(
        1, condition.frame.node_of_number, per_number
    )
    channels = torch.bincount(condition.frame.node_of_number)
    torch.testing.assert_close(loss.detach(), (per_node / channels)[~nodes].mean())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        scaled = made(schedule=LogUniform(0.5, 2), prediction="velocity")
        assert scaled.loss(values, observed) != loss


def test_the_mixed_loss_is_that_of_the_velocity_for_real_numbers_and_the_cross_entropy_for_choices():
    values, model = values_of(4), made(schedule=LogUniform(0.5, 2), prediction="mixed")
    clean, condition = model.example(values, torch.zeros(4, 16, dtype=torch.bool))
    torch.manual_seed(3)
    loss = model.loss(values, torch.zeros(4, 16, dtype=torch.bool))
    torch.manual_seed(3)
    sigma = model.schedule.draw(4).double()[:, None]
    noise = torch.randn_like(clean)
    x = clean + sigma * noise
    alpha, s = 1 / (1 + sigma**2).sqrt(), sigma / (1 + sigma**2).sqrt()
    output = model.denoiser(alpha * x, sigma[:, 0].log() / 4, condition.nodes, condition.frame)
    # Salimans and Ho (2022): v = alpha noise - s x0; the network gives -v
    squares = (output + alpha * noise - s * clean) ** 2
    slots = condition.frame.slots
    nodes = [squares[:, slots["A"].numbers], squares[:, slots["V"].numbers].unflatten(1, (4, 2)).mean(2)]
    for name, right in (("B", values["B"].long()), ("K", values["K"].argmax(2))):
        scores = output[:, slots[name].numbers].unflatten(1, (4, -1))
        nodes.append(torch.nn.functional.cross_entropy(scores.transpose(1, 2), right, reduction="none"))
    torch.testing.assert_close(loss, torch.cat(nodes, 1).mean(), rtol=1e-6, atol=1e-9)
    # estimates of choices are their probabilities, standardised
    estimate = model.denoise(x, sigma[:, 0], condition)
    for name, share in (("B", 1 / 2), ("K", 1 / 3)):
        expected = (output[:, slots[name].numbers].unflatten(1, (4, -1)).softmax(2).flatten(1) - share) / (
            share * (1 - share)
        ) ** 0.5
        torch.testing.assert_close(estimate[:, slots[name].numbers], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("prediction", ["mixed", "x0", "velocity"])
@EVERY_SELF_CONDITIONING
def test_the_loss_has_finite_gradients_for_all_weights(prediction, self_conditioning):
    model = made(prediction=prediction, self_conditioning=self_conditioning)
    torch.manual_seed(0)
    model.loss(values_of(16), torch.rand(16, 16) < 0.3).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() and p.grad.any() for p in model.parameters())


@pytest.mark.slow
# torch's own compiler asks for it where it resumes
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize(
    ("self_conditioning", "graphs"),
    # the number of examples with a previous estimate varies, so that selecting them ends a compiled graph
    [("none", 1), ("estimate", 4)],
)
def test_after_reading_an_example_the_loss_compiles_into_few_graphs_with_the_values_of_the_eager_one(
    self_conditioning, graphs, capfd
):
    model = Diffusion(
        Denoiser(declared(), width=8, depth=2, heads=2, self_conditioning=self_conditioning)
    ).double()
    values = values_of(4)
    observed = {
        name: torch.zeros(4, *model.frames.at().slots[name].node_shape, dtype=torch.bool) for name in values
    }
    observed["A"][::2] = True

    def loss_and_slopes(loss):
        torch.manual_seed(0)
        value = loss(values, observed)
        return value, *torch.autograd.grad(value, list(model.parameters()), allow_unused=True)

    # the first call plans the attention, which in compiled code made torch print tracebacks
    torch._dynamo.reset()
    planned = loss_and_slopes(torch.compile(model.loss, backend="eager"))
    assert "Traceback" not in capfd.readouterr().err
    expected = loss_and_slopes(model.loss)
    torch.testing.assert_close(planned, expected)
    torch._dynamo.reset()
    counters.clear()
    torch.testing.assert_close(loss_and_slopes(torch.compile(model.loss, backend="eager")), expected)
    assert counters["stats"]["unique_graphs"] == graphs


@pytest.mark.parametrize("passes", [1, 4])
@pytest.mark.parametrize("self_conditioning", ["tokens", "estimate"])
def test_half_of_the_examples_have_all_passes_the_others_fewer_and_without_gradient(
    self_conditioning, passes
):
    model = made(self_conditioning=self_conditioning, passes=passes)
    calls = []
    watched(model, lambda *call: calls.append((*call, torch.is_grad_enabled())))
    torch.manual_seed(0)
    count = 400 * passes
    model.loss(values_of(count), torch.zeros(count, 16, dtype=torch.bool))
    assert [with_gradient for *_, with_gradient in calls] == [False] * passes + [True]
    sizes = [len(rows) for rows, *_ in calls]
    # from pass to pass an eighth fewer if there are four
    assert (
        all(150 < larger - smaller < 250 for larger, smaller in itertools.pairwise([count, *sizes[:-1]]))
        and sizes[-1] == count
    )
    # each example receives the state of its last pass on the same noisy values; zeros without one
    left = {}
    for rows, memory, tokens, estimate, _ in calls:
        for k, row in enumerate(rows):
            expected = left.get(tuple(row.tolist()), torch.zeros_like(memory[k]))
            assert torch.equal(memory[k], expected)
            left[tuple(row.tolist())] = (tokens if self_conditioning == "tokens" else estimate)[k].detach()
    assert not calls[-1][1].requires_grad


@pytest.mark.parametrize("passes", [0, -1, 1.5, True])
def test_bad_numbers_of_passes_are_refused(passes):
    with pytest.raises(unn.ArgumentError, match="diffusion: passes must be a whole number >= 1"):
        made(passes=passes)


# -- what samplers are given ---------------------------------------------------------------------------------


@EVERY_SAMPLER
@EVERY_SELF_CONDITIONING
def test_the_selected_part_of_the_last_estimate_is_fed_back_also_between_restarts(sampler, self_conditioning):
    model = made(self_conditioning=self_conditioning)
    calls = []
    watched(model, lambda rows, *call: calls.append(call))
    # a fall of eight steps and three rounds of four
    samples = model.sample(count=2, steps=20, sampler=sampler, spacing="restarts", seed=0)
    assert all(x.isfinite().all() for x in samples.values.values())
    assert calls[0][0] is None and len(calls) == (36 if sampler == "heun" else 20)
    for (_, tokens, estimate), (memory, _, _) in itertools.pairwise(calls):
        assert (
            memory is None
            if self_conditioning == "none"
            else torch.equal(memory, tokens if self_conditioning == "tokens" else estimate)
        )


@EVERY_SAMPLER
@EVERY_SELF_CONDITIONING
def test_a_sampler_from_elsewhere_that_asks_the_estimator_draws_the_same_samples(sampler, self_conditioning):
    model = made(self_conditioning=self_conditioning)
    held = {"A": values_of(1)["A"]}
    condition = model.condition(held, 3)
    torch.manual_seed(3)
    ours = model.sample(held, 3, steps=5, sampler=sampler, spacing="schedule")
    torch.manual_seed(3)
    levels = model.schedule.levels(5).double()
    with torch.no_grad():
        start = (1 + levels[0] ** 2).sqrt() * torch.randn_like(condition.rows)
        x = SAMPLERS[sampler](
            model.estimator(condition), start, levels, lambda: torch.randn_like(start), silent
        )
    theirs = model.values_of(torch.where(condition.numbers, condition.rows, x), condition, held)
    assert alike(theirs, ours.values)


@EVERY_SAMPLER
def test_a_schedule_of_one_step_can_be_sampled_in_any_number(sampler):
    model = made(schedule=LinearSteps(1, 0.5))
    for steps in (1, 3):
        samples = model.sample(count=2, steps=steps, sampler=sampler, seed=0)
        assert all(x.isfinite().all() for x in samples.values.values()), steps


# -- samplers of other libraries -----------------------------------------------------------------------------


def starts(model, seeds, levels):
    """The noise that samples with these seeds begin with."""
    numbers = model.denoiser.frame().numbers
    return (1 + levels[0] ** 2).sqrt() * torch.stack(
        [torch.randn(numbers, generator=torch.Generator().manual_seed(s)) for s in seeds]
    ).double()


def natural(model, rows):
    """Real values of standardised rows."""
    slot = model.denoiser.frame().slots["A"]
    return rows[:, slot.numbers] * model.scales[0] + model.offsets[0]


def prepared(**options):
    model = made(**options)
    model.standardise({**values_of(30), "A": 1 + 2 * values_of(30)["A"]})
    return model, {"V": values_of(1, seed=5)["V"]}, [3, 4, 5]


@pytest.mark.parametrize("prediction", ["x0", "velocity"])
def test_a_loop_of_euler_steps_as_in_k_diffusion_gives_the_samples_of_ddim(prediction):
    model, known, seeds = prepared(prediction=prediction)
    condition = model.condition(known, 3)
    sigmas = model.schedule.levels(6).double()

    def denoiser(x, sigma):
        return model.denoise(x, sigma, condition)

    with torch.no_grad():
        x = starts(model, seeds, sigmas)
        ones = x.new_ones(len(x))
        for now, after in itertools.pairwise(sigmas):
            derivative = (x - denoiser(x, now * ones)) / now
            x = x + derivative * (after - now)
        expected = SAMPLERS["ddim"](denoiser, starts(model, seeds, sigmas), sigmas, lambda: 0, silent)
    torch.testing.assert_close(
        torch.where(condition.numbers, condition.rows, x),
        torch.where(condition.numbers, condition.rows, expected),
    )
    samples = model.sample(known, 3, steps=6, sampler="ddim", spacing="schedule", seed=seeds)
    torch.testing.assert_close(natural(model, x), samples["A"])


class Scheduler:
    """As in diffusers: latents keep their variance, z = sqrt(abar) x0 + sqrt(1 - abar) noise."""

    init_noise_sigma = 1.0

    def __init__(self, betas):
        self.alpha_products = (1 - betas).cumprod(0)

    def set_timesteps(self, count):
        self.timesteps = torch.linspace(len(self.alpha_products) - 1, 0, count).round().long()

    def step(self, x0, place, z, noise=None):
        now = self.alpha_products[self.timesteps[place]]
        last = place + 1 == len(self.timesteps)
        before = torch.ones_like(now) if last else self.alpha_products[self.timesteps[place + 1]]
        if noise is None:
            direction = (z - now.sqrt() * x0) / (1 - now).sqrt()
            return SimpleNamespace(prev_sample=before.sqrt() * x0 + (1 - before).sqrt() * direction)
        # Ho et al. (2020), equation 7
        alpha = now / before
        mean = before.sqrt() * (1 - alpha) / (1 - now) * x0 + alpha.sqrt() * (1 - before) / (1 - now) * z
        return SimpleNamespace(prev_sample=mean + ((1 - before) / (1 - now) * (1 - alpha)).sqrt() * noise)


@pytest.mark.parametrize("sampler", ["ancestral", "ddim"])
def test_a_scheduler_as_in_diffusers_gives_the_same_samples(sampler):
    model, known, seeds = prepared()
    steps = 10
    scheduler = Scheduler(torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64))
    scheduler.set_timesteps(steps)
    condition = model.condition(known, 3)
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]

    def noise():
        return torch.stack([torch.randn(condition.frame.numbers, generator=g) for g in generators]).double()

    z = scheduler.init_noise_sigma * noise()
    with torch.no_grad():
        for place, t in enumerate(scheduler.timesteps):
            alpha_product = scheduler.alpha_products[t]
            sigma = ((1 - alpha_product) / alpha_product).sqrt()
            x0 = model.denoise(z / alpha_product.sqrt(), sigma, condition)
            fresh = (
                noise()
                if sampler == "ancestral" and place + 1 < steps
                else torch.zeros_like(z)
                if sampler == "ancestral"
                else None
            )
            z = scheduler.step(x0, place, z, fresh).prev_sample
    samples = model.sample(known, 3, steps=steps, sampler=sampler, spacing="schedule", seed=seeds)
    torch.testing.assert_close(natural(model, z), samples["A"], rtol=1e-4, atol=1e-4)


def test_a_scheduler_of_diffusers_gives_the_samples_of_ddim():
    diffusers = pytest.importorskip("diffusers")
    model, known, seeds = prepared()
    scheduler = diffusers.DDIMScheduler(
        beta_start=1e-4,
        beta_end=0.02,
        prediction_type="sample",
        clip_sample=False,
        timestep_spacing="trailing",
    )
    scheduler.set_timesteps(10)
    condition = model.condition(known, 3)

    def denoiser(x, sigma):
        return model.denoise(x, sigma, condition)

    alpha_product = scheduler.alphas_cumprod[scheduler.timesteps].double()
    sigmas = torch.cat([((1 - alpha_product) / alpha_product).sqrt(), torch.zeros(1)])
    with torch.no_grad():
        x = starts(model, seeds, sigmas)
        expected = SAMPLERS["ddim"](denoiser, x, sigmas, lambda: 0, silent)
        z = x * alpha_product[0].sqrt()
        for t, share, sigma in zip(scheduler.timesteps, alpha_product, sigmas, strict=False):
            z = scheduler.step(denoiser(z / share.sqrt(), sigma), t, z).prev_sample
    unknown = ~condition.numbers
    torch.testing.assert_close(z[unknown], expected[unknown], rtol=1e-4, atol=1e-4)


# -- sizes, spacing, training --------------------------------------------------------------------------------


def test_one_model_samples_at_all_sizes():
    model = made(factorisation("binary", True))
    for i, j, k in ((2, 3, 1), (4, 2, 3), (1, 1, 1)):
        samples = model.sample(count=2, steps=2, sizes={"i": i, "j": j, "k": k})
        assert {name: tuple(x.shape[1:]) for name, x in samples.values.items()} == {
            "A": (i, k),
            "R": (k, j),
            "C": (i, j, k),
            "E": (i, j),
        }
    with pytest.raises(unn.DeclarationError, match=says("'k'")):
        model.sample(sizes={"i": 2, "j": 2})


def test_spacing_changes_the_levels():
    model = made()

    def drawn(model, spacing):
        return model.sample(count=2, steps=14, spacing=spacing, seed=0, sampler="ddim")["A"]

    assert not torch.allclose(drawn(model, "schedule"), drawn(model, "log-snr"))
    assert not torch.allclose(drawn(model, "schedule"), drawn(model, "restarts"))
    even = made(schedule=LogUniform(float(LinearSteps().sigmas[0]), float(LinearSteps().sigmas[-1])))
    torch.testing.assert_close(drawn(even, "schedule"), drawn(model, "log-snr"), rtol=1e-4, atol=1e-4)


def test_sampling_has_levels_even_in_the_log_snr_by_default_and_passes_each_step_to_the_trace():
    model, seen = made(), []
    samples = model.sample(count=2, steps=20, seed=0, trace=lambda k, values: seen.append(k))
    again = model.sample(count=2, steps=20, seed=0, sampler="dpm-solver", spacing="log-snr")
    assert seen == list(range(20)) and all(torch.equal(samples[name], again[name]) for name in samples.values)


def test_trained_a_little_it_knows_the_mean_of_what_it_saw():
    # a list and its sorted list; the permutation and the products are to be found
    g = unn.FactorGraph("two", n=2)
    u, s = g.variable("u", "n", unn.SquaredNorm()), g.variable("s", "n", unn.SquaredNorm())
    g.factor(Depends(s["i"], u["j"], ordered="i"))
    torch.manual_seed(0)
    model = Diffusion(Denoiser(g, width=16, heads=2, depth=2))
    generator = torch.Generator().manual_seed(0)

    def batch(count):
        lists = torch.randn(count, 2, generator=generator)
        return {"u": lists, "s": lists.sort(1).values}

    model.standardise(batch(500))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    given = {"u": torch.ones(1, 2, dtype=torch.bool)}
    for _ in range(120):
        optimizer.zero_grad()
        model.loss(batch(64), given).backward()
        optimizer.step()
    held = batch(200)
    samples = model.sample({"u": held["u"]}, 200, steps=10, seed=0)
    assert torch.equal(samples["u"], held["u"])
    assert float((samples["s"] - held["s"]).square().mean()) < 0.25 * float(held["s"].var())


def test_unknown_predictions_are_refused():
    denoiser = Denoiser(declared(), width=8, heads=2)
    with pytest.raises(
        unn.ArgumentError, match=says("unknown prediction 'velocit'", "Did you mean 'velocity'?")
    ):
        Diffusion(denoiser, prediction="velocit")
    with pytest.raises(unn.ArgumentError, match=says("unknown prediction 'eps'", "velocity", "x0")):
        Diffusion(denoiser, prediction="eps")
