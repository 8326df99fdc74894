"""Diffusion over the values of a graph: what the network predicts, the loss, conditional samples, runs, what
is refused."""

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.helpers import INF, NAN, says
from support.toy import same_tensors, tensors_of, without_times

import unn
from factors import Cardinality, Clique, Depends
from problems.factorisation.problem import FactorisationProblem
from problems.sorting.graph import generate as sorted_lists
from problems.sudoku.grids import all_grids, one_hot
from problems.sudoku.grids import declare as sudoku
from problems.sudoku.problem import SudokuProblem
from unn.diffusion import SAMPLERS, Diffusion, LinearSteps, LogUniform, MaskedDiffusion
from unn.extending import DenoiserOptions
from unn.networks import Denoiser
from unn.networks.denoiser import SELF_CONDITIONINGS
from unn.training import TrainingConfig, fit

EVERY_SAMPLER = pytest.mark.parametrize("sampler", list(SAMPLERS))
EVERY_SELF_CONDITIONING = pytest.mark.parametrize("self_conditioning", SELF_CONDITIONINGS)


def declared():
    """Real numbers and vectors, binary values and categories, four nodes each."""
    g = unn.FactorGraph("four", n=4, d=2, c=3)
    A, V = g.variable("A", "n", unn.SquaredNorm()), g.variable("V", "n | d", unn.SquaredNorm())
    B, K = g.variable("B", "n", unn.BinaryEntropy()), g.variable("K", "n | c", unn.Entropy())
    g.factor(Depends(A["i"], V["i p"], B["i"], K["i v"]))
    g.factor(Clique(A["i"]))
    return g


def values_of(batch, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return {
        "A": torch.randn(batch, 4, generator=generator, dtype=dtype),
        "V": torch.randn(batch, 4, 2, generator=generator, dtype=dtype),
        "B": torch.randint(2, (batch, 4), generator=generator).to(dtype),
        "K": torch.nn.functional.one_hot(torch.randint(3, (batch, 4), generator=generator), 3).to(dtype),
    }


def made(graph=None, seed=0, width=8, sizes=None, self_conditioning="none", prediction="x0", **options):
    """A model with random weights, in float64; of the paper's process, whose estimate is the output of the
    network, unless said otherwise."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        denoiser = Denoiser(
            graph or declared(),
            width=width,
            heads=2,
            depth=2,
            self_conditioning=self_conditioning,
            sizes=sizes,
        )
        model = Diffusion(denoiser, prediction=prediction, **{"schedule": LinearSteps(), **options})
        for p in denoiser.parameters():
            torch.nn.init.normal_(p, std=p.shape[-1] ** -0.5 if p.ndim > 1 else 0.5)
    return model.double().eval()


def with_network(model, network):
    """The model with another function for its network, which is called with rows, level, observed, frame,
    memory."""
    model.denoiser.tokens, model.denoiser.estimate = network, lambda estimate, frame: estimate
    return model


def silent(*_):
    pass


def watched(model, look):
    """The model with its own network, and ``look`` called with each call's memory, tokens and estimate."""
    network, estimate = model.denoiser.tokens, model.denoiser.estimate

    def tokens(rows, level, observed, frame, memory=None):
        found = network(rows, level, observed, frame, memory)
        look(rows, memory, found, estimate(found, frame))
        return found

    model.denoiser.tokens = tokens
    return model


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
        torch.tensor([0.01, 1.0, 80.0], dtype=torch.float64),
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
    found = model.loss(values, observed)
    torch.manual_seed(3)
    assert torch.equal(model.loss(values, nodes), found)
    torch.manual_seed(3)
    sigma = model.schedule.draw(4).double()
    estimate = model.denoise(clean + sigma[:, None] * torch.randn_like(clean), sigma, condition)
    per_number = (estimate - clean).square().detach()
    per_node = torch.zeros(4, 16, dtype=torch.float64).index_add(
        1, condition.frame.node_of_number, per_number
    )
    channels = torch.bincount(condition.frame.node_of_number)
    torch.testing.assert_close(found.detach(), (per_node / channels)[~nodes].mean())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        scaled = made(schedule=LogUniform(0.5, 2), prediction="velocity")
        assert scaled.loss(values, observed) != found


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


@pytest.mark.parametrize("passes", [1, 4])
@pytest.mark.parametrize("self_conditioning", ["tokens", "estimate"])
def test_half_of_the_examples_have_all_passes_the_others_fewer_and_without_gradient(
    self_conditioning, passes
):
    model = made(self_conditioning=self_conditioning, passes=passes)
    calls = []
    watched(model, lambda *found: calls.append((*found, torch.is_grad_enabled())))
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
    with pytest.raises(unn.DeclarationError, match="diffusion: passes must be a whole number >= 1"):
        made(passes=passes)


# -- standardising -------------------------------------------------------------------------------------------


def test_real_variables_get_their_mean_and_deviation_and_choices_keep_theirs():
    values, model = values_of(50), made()
    values["A"] = 3 + 5 * values["A"]
    before = model.offsets.clone(), model.scales.clone()
    model.standardise(values)
    for k, name in enumerate("AV"):
        torch.testing.assert_close(model.offsets[k], values[name].mean())
        torch.testing.assert_close(model.scales[k], values[name].std())
    assert torch.equal(model.offsets[2:], before[0][2:]) and torch.equal(model.scales[2:], before[1][2:])
    # a fair coin, and three options that are equally likely
    torch.testing.assert_close(
        model.offsets[2:], torch.tensor([1 / 2, 1 / 3], dtype=torch.float64), rtol=1e-6, atol=0
    )
    torch.testing.assert_close(
        model.scales[2:], torch.tensor([1 / 2, 2**0.5 / 3], dtype=torch.float64), rtol=1e-6, atol=0
    )
    rows = model.example(values, torch.zeros(50, 16, dtype=torch.bool))[0]
    for name in "AV":
        part = rows[:, model.denoiser.frame().slots[name].numbers]
        assert float(part.mean()) == pytest.approx(0, abs=1e-9) and float(part.std()) == pytest.approx(1)


def test_standard_values_are_those_of_the_model_and_saved_with_it():
    model, other = made(), made(seed=1)
    model.standardise({**values_of(20), "A": 100 + values_of(20)["A"]})
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.offsets, model.offsets) and torch.equal(other.scales, model.scales)
    # a network that estimates zero samples the mean
    found = with_network(other, lambda rows, *_: torch.zeros_like(rows)).sample(count=2, steps=3, seed=0)
    torch.testing.assert_close(found["A"], model.offsets[0].expand(2, 4))


def test_a_variable_that_never_changes_does_no_harm():
    model = made()
    model.standardise({**values_of(20), "V": torch.full((20, 4, 2), 7.0)})
    assert model.scales[1] > 0 and model.offsets[1] == 7
    torch.manual_seed(0)
    values = {**values_of(5), "V": torch.full((5, 4, 2), 7.0)}
    assert model.loss(values, torch.zeros(5, 16, dtype=torch.bool)).isfinite()
    assert model.sample({"V": values["V"][:1]}, 2, steps=2)["A"].isfinite().all()


# -- samples given values ------------------------------------------------------------------------------------


@EVERY_SAMPLER
@pytest.mark.parametrize("names", ["A", "V", "B", "K", "AVBK", ""])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_given_values_come_back_bit_for_bit_and_the_others_are_of_their_kind(sampler, names, dtype):
    model = made().to(dtype)
    model.standardise({**values_of(9), "A": 2 + 3 * values_of(9)["A"]})
    values = {name: x / 3 if name in "AV" else x for name, x in values_of(3, seed=1, dtype=dtype).items()}
    found = model.sample({name: values[name] for name in names}, 3, steps=3, sampler=sampler, seed=0)
    assert list(found.values) == list("AVBK") and found.valid is None and found.tries.tolist() == [1, 1, 1]
    for name, x in found.values.items():
        assert (
            x.shape == values[name].shape
            and x.isfinite().all()
            and torch.equal(x, values[name]) is (name in names)
        ), name
    assert ((found["B"] == 0) | (found["B"] == 1)).all()
    assert ((found["K"] == 0) | (found["K"] == 1)).all() and (found["K"].sum(2) == 1).all()


@EVERY_SAMPLER
def test_values_given_in_part_come_back_bit_for_bit_where_they_are_given(sampler):
    model = made(seed=2)
    values = {name: x / 3 if name in "AV" else x for name, x in values_of(4, seed=1).items()}
    where = torch.rand(4, 4, generator=torch.Generator().manual_seed(0)) < 0.5
    found = model.sample(
        {name: unn.Partial(x, where) for name, x in values.items()}, 4, steps=3, sampler=sampler, seed=0
    )
    for name, x in found.values.items():
        assert torch.equal(x[where], values[name][where])
        assert not torch.equal(x[~where], values[name][~where])
    # what stands elsewhere changes nothing
    other = {
        name: unn.Partial(torch.where(where.view(4, 4, *(1,) * (x.ndim - 2)), x, NAN), where)
        for name, x in values.items()
    }
    again = model.sample(other, 4, steps=3, sampler=sampler, seed=0)
    assert same_tensors(again.values, found.values)


def test_one_given_value_is_for_all_samples():
    model, values = made(), values_of(1)
    found = model.sample(
        {"A": values["A"], "K": unn.Partial(values["K"], torch.tensor([[True, False, False, True]]))},
        5,
        steps=2,
    )
    assert torch.equal(found["A"], values["A"].expand(5, 4)) and torch.equal(
        found["K"][:, [0, 3]], values["K"][:, [0, 3]].expand(5, 2, 3)
    )


def test_samples_depend_on_their_evidence_and_not_on_other_samples():
    model = made()
    a, b = values_of(2, seed=1)["A"], values_of(2, seed=2)["A"]
    b[0] = a[0]
    one, two = (model.sample({"A": A}, 2, steps=4, seed=0) for A in (a, b))
    torch.testing.assert_close(one["V"][0], two["V"][0])
    assert (one["V"][1] - two["V"][1]).abs().max() > 1e-4


def test_a_variable_of_a_single_node_can_be_given():
    g = unn.FactorGraph("single", n=2, c=3)
    A, K, T = (
        g.variable("A", "n", unn.SquaredNorm()),
        g.variable("K", "c", unn.Entropy()),
        g.variable("T", "", unn.SquaredNorm()),
    )
    g.factor(Depends(A["i"], K["v"], T[""]))
    model = made(g)
    K, T = torch.eye(3, dtype=torch.float64)[[1, 2]], torch.tensor([0.1, 0.7], dtype=torch.float64)
    found = model.sample({"K": K, "T": T}, 2, steps=2)
    assert torch.equal(found["K"], K) and torch.equal(found["T"], T)
    found = model.sample({"K": unn.Partial(K, torch.tensor([True, False]))}, 2, steps=2)
    assert torch.equal(found["K"][0], K[0])
    values = {"A": torch.zeros(2, 2), "K": K, "T": T}
    assert model.loss(values, {"K": torch.tensor([True, False])}).isfinite()


def test_all_that_is_given_comes_back_without_a_question():
    model = made()
    values = values_of(2)
    found = model.sample(values, 2, steps=2)
    assert same_tensors(found.values, values)


# -- seeds and batches ---------------------------------------------------------------------------------------


def alike(a, b):
    """The same samples, to the rounding of batches of another size."""
    return all(torch.allclose(a[name], b[name], atol=1e-5, rtol=1e-5) for name in a)


@EVERY_SAMPLER
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_sample_depends_on_its_own_seed_alone(sampler, dtype):
    # narrow levels, so that rounding is not blown up
    model = made(schedule=LogUniform(0.05, 5)).to(dtype)
    A = values_of(5, seed=3, dtype=dtype)["A"]
    seeds = [11, 12, 13, 14, 15]
    options = {"steps": 4, "sampler": sampler}
    whole = model.sample({"A": A}, 5, seed=seeds, **options).values
    for at_once in (1, 2, 64):
        assert alike(model.sample({"A": A}, 5, seed=seeds, at_once=at_once, **options).values, whole)
    order = [3, 0, 4, 1, 2]
    mixed = model.sample({"A": A[order]}, 5, seed=[seeds[k] for k in order], **options).values
    assert alike(mixed, {name: x[order] for name, x in whole.items()})
    one = model.sample({"A": A[2:3]}, 1, seed=[13], **options).values
    assert alike(one, {name: x[2:3] for name, x in whole.items()})
    other = model.sample({"A": A}, 5, seed=[11, 12, 99, 14, 15], **options).values
    changed = [not torch.allclose(a, b, atol=1e-3) for a, b in zip(other["V"], whole["V"], strict=True)]
    assert changed == [False, False, True, False, False]


@EVERY_SAMPLER
def test_the_same_seed_gives_the_same_samples_and_leaves_the_global_generator_alone(sampler):
    model = made()
    before = torch.get_rng_state()
    a, b, c = (model.sample(count=3, steps=3, sampler=sampler, seed=seed).values for seed in (5, 5, 6))
    assert same_tensors(a, b) and not torch.equal(a["V"], c["V"])
    more = model.sample(count=5, steps=3, sampler=sampler, seed=5).values
    assert alike({name: x[:3] for name, x in more.items()}, a)
    assert torch.equal(torch.get_rng_state(), before)
    assert len({tuple(x) for x in a["A"].tolist()}) == 3


def test_without_a_seed_the_global_generator_decides():
    model = made()
    torch.manual_seed(0)
    a = model.sample(count=2, steps=2).values
    b = model.sample(count=2, steps=2).values
    torch.manual_seed(0)
    assert same_tensors(model.sample(count=2, steps=2).values, a) and not torch.equal(a["V"], b["V"])


@EVERY_SAMPLER
def test_no_more_samples_than_asked_for_are_in_memory_at_once(sampler):
    model = made()
    sizes = []
    watched(model, lambda rows, *_: sizes.append(len(rows)))
    model.sample(count=7, steps=2, sampler=sampler, at_once=3)
    per_chunk = 3 if sampler == "heun" else 2
    assert sizes == [3] * per_chunk + [3] * per_chunk + [1] * per_chunk


def test_sampling_keeps_no_graph_and_goes_back_to_training():
    model = made()
    modes = []
    watched(model, lambda *_: modes.append((model.denoiser.training, torch.is_grad_enabled())))
    model.train()
    assert not any(x.requires_grad for x in model.sample(steps=1).values.values())
    assert modes == [(False, False)] and model.training and model.denoiser.training
    model.eval().sample(steps=1)
    assert not model.training

    def fail(*_):
        raise KeyboardInterrupt

    with_network(model.train(), fail)
    with pytest.raises(KeyboardInterrupt):
        model.sample(steps=1)
    assert model.training


@EVERY_SAMPLER
@EVERY_SELF_CONDITIONING
def test_the_selected_part_of_the_last_estimate_is_fed_back_also_between_restarts(sampler, self_conditioning):
    model = made(self_conditioning=self_conditioning)
    calls = []
    watched(model, lambda rows, *found: calls.append(found))
    # a fall of eight steps and three rounds of four
    found = model.sample(count=2, steps=20, sampler=sampler, spacing="restarts", seed=0)
    assert all(x.isfinite().all() for x in found.values.values())
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
        found = model.sample(count=2, steps=steps, sampler=sampler, seed=0)
        assert all(x.isfinite().all() for x in found.values.values()), steps


# -- watching ------------------------------------------------------------------------------------------------


@EVERY_SAMPLER
def test_every_step_is_shown_with_values_of_the_shapes_of_the_variables(sampler):
    model = made()
    model.standardise({**values_of(9), "A": 2 + 3 * values_of(9)["A"]})
    given, seen = (
        {
            "V": values_of(3, seed=4)["V"],
            "B": unn.Partial(values_of(3, seed=4)["B"], torch.tensor([[True, False, False, False]] * 3)),
        },
        [],
    )
    found = model.sample(
        given, 3, steps=5, sampler=sampler, seed=0, trace=lambda k, values: seen.append((k, values))
    )
    assert [k for k, _ in seen] == list(range(5))
    for _, values in seen:
        assert {name: tuple(x.shape) for name, x in values.items()} == {
            "A": (3, 4),
            "V": (3, 4, 2),
            "B": (3, 4),
            "K": (3, 4, 3),
        }
        torch.testing.assert_close(values["V"], given["V"])
        torch.testing.assert_close(values["B"][:, 0], given["B"].value[:, 0])
    last = seen[-1][1]
    torch.testing.assert_close(last["A"], found["A"])
    assert torch.equal(last["K"].argmax(2), found["K"].argmax(2)) and torch.equal(
        (last["B"] > 0.5).double(), found["B"]
    )
    # noise goes down
    spread = [float(values["A"].std()) for _, values in seen]
    assert spread[0] > spread[-1]
    assert same_tensors(model.sample(given, 3, steps=5, sampler=sampler, seed=0).values, found.values)


# -- checking and trying again -------------------------------------------------------------------------------


def violations(X):
    """How many rows, columns and blocks of 4 x 4 grids lack a digit, shape ``(count,)``."""
    blocks = X.view(-1, 2, 2, 2, 2, 4).transpose(2, 3).reshape(-1, 4, 4, 4)
    return sum((group.sum(2) != 1).flatten(1).sum(1) for group in (X, X.transpose(1, 2), blocks))


def undecided(model):
    """The model with a network that makes a valid grid or a wrong one of what it sees in the first cell."""
    grids = all_grids(2, 2)
    wrong = grids[0].clone()
    wrong[3, 3] = (wrong[3, 3] + 1) % 4
    good, bad = (
        (one_hot(grid[None], 4).flatten().double() - 0.25) / 0.1875**0.5 for grid in (grids[-1], wrong)
    )
    assert good[0] < bad[0]
    return with_network(model, lambda rows, *_: torch.where(rows[:, :1] < 0.3, good, bad))


@EVERY_SAMPLER
def test_samples_that_break_a_constraint_are_drawn_again(sampler):
    model = undecided(made(sudoku(2, 2)))
    options = {"steps": 3, "sampler": sampler, "seed": 1, "at_once": 5}
    plain = model.sample(count=24, **options)
    assert plain.valid is None and plain.tries.tolist() == [1] * 24
    first = None
    for tries in (1, 2, 4):
        found = model.sample(count=24, verify=True, tries=tries, **options)
        assert torch.equal(found.valid, violations(found["X"]) == 0) and found.valid.dtype == torch.bool
        assert (
            (found.tries[~found.valid] == tries).all()
            and found.tries.min() >= 1
            and found.tries.max() <= tries
        )
        if first is None:
            first = found
            assert same_tensors(found.values, plain.values) and 0 < int(found.valid.sum()) < 24
        # what was valid at once is left alone
        assert (
            torch.equal(found["X"][first.valid], first["X"][first.valid])
            and (found.tries[first.valid] == 1).all()
        )
        assert torch.equal(found.tries == 1, first.valid | torch.tensor(tries == 1))
    assert found.valid.sum() > first.valid.sum()


def test_samples_are_drawn_again_from_their_own_seed():
    model = undecided(made(sudoku(2, 2)))
    whole = model.sample(count=8, steps=3, seed=range(8), verify=True, tries=3)
    for k in range(8):
        alone = model.sample(count=1, steps=3, seed=[k], verify=True, tries=3)
        assert (
            torch.equal(alone["X"][0], whole["X"][k])
            and alone.tries[0] == whole.tries[k]
            and alone.valid[0] == whole.valid[k]
        )


def test_validity_is_what_the_factors_say():
    g = sudoku(2, 2)
    model = made(g)
    X = one_hot(all_grids(2, 2), 4)
    assert model.valid({"X": X}).all() and not violations(X).any()
    X = X[torch.arange(288).roll(1)].clone()
    X[::2, 1] = X[::2, 2]
    expected = sum(factor.violations(X) for factor in g.factors.values() if isinstance(factor, Cardinality))
    assert torch.equal(model.valid({"X": X}), expected == 0) and torch.equal(expected, violations(X).long())
    with pytest.raises(unn.DeclarationError, match=says("no constraint")):
        made().sample(count=2, steps=1, verify=True)


@EVERY_SAMPLER
def test_a_puzzle_without_a_solution_is_sampled_and_reported(sampler):
    model = made(sudoku(2, 2))
    # the same digit twice in a row
    X = one_hot(torch.zeros(1, 4, 4, dtype=torch.int64), 4)
    where = torch.zeros(1, 4, 4, dtype=torch.bool)
    where[0, 0, :2] = True
    found = model.sample({"X": unn.Partial(X, where)}, 3, steps=2, sampler=sampler, verify=True, tries=3)
    assert found.valid.tolist() == [False] * 3 and found.tries.tolist() == [3] * 3
    assert (found["X"][:, 0, :2].argmax(2) == 0).all()
    found = model.sample({"X": X}, 2, steps=2, sampler=sampler, verify=True, tries=2)
    assert found.valid.tolist() == [False] * 2 and torch.equal(found["X"], X.expand(2, -1, -1, -1).double())


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
    found = model.sample(known, 3, steps=6, sampler="ddim", spacing="schedule", seed=seeds)
    torch.testing.assert_close(natural(model, x), found["A"])


class Scheduler:
    """As in diffusers: latents keep their variance, z = sqrt(abar) x0 + sqrt(1 - abar) noise."""

    init_noise_sigma = 1.0

    def __init__(self, betas):
        self.kept = (1 - betas).cumprod(0)

    def set_timesteps(self, count):
        self.timesteps = torch.linspace(len(self.kept) - 1, 0, count).round().long()

    def step(self, x0, place, z, noise=None):
        now = self.kept[self.timesteps[place]]
        last = place + 1 == len(self.timesteps)
        before = torch.ones_like(now) if last else self.kept[self.timesteps[place + 1]]
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
            kept = scheduler.kept[t]
            sigma = ((1 - kept) / kept).sqrt()
            x0 = model.denoise(z / kept.sqrt(), sigma, condition)
            fresh = (
                noise()
                if sampler == "ancestral" and place + 1 < steps
                else torch.zeros_like(z)
                if sampler == "ancestral"
                else None
            )
            z = scheduler.step(x0, place, z, fresh).prev_sample
    found = model.sample(known, 3, steps=steps, sampler=sampler, spacing="schedule", seed=seeds)
    torch.testing.assert_close(natural(model, z), found["A"], rtol=1e-4, atol=1e-4)


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

    kept = scheduler.alphas_cumprod[scheduler.timesteps].double()
    sigmas = torch.cat([((1 - kept) / kept).sqrt(), torch.zeros(1)])
    with torch.no_grad():
        x = starts(model, seeds, sigmas)
        expected = SAMPLERS["ddim"](denoiser, x, sigmas, lambda: 0, silent)
        z = x * kept[0].sqrt()
        for t, share, sigma in zip(scheduler.timesteps, kept, sigmas, strict=False):
            z = scheduler.step(denoiser(z / share.sqrt(), sigma), t, z).prev_sample
    unknown = ~condition.numbers
    torch.testing.assert_close(z[unknown], expected[unknown], rtol=1e-4, atol=1e-4)


# -- sizes, spacing, training --------------------------------------------------------------------------------


def test_one_model_samples_at_all_sizes():
    from problems.factorisation.graph import declare

    model = made(declare("binary", True))
    for i, j, k in ((2, 3, 1), (4, 2, 3), (1, 1, 1)):
        found = model.sample(count=2, steps=2, sizes={"i": i, "j": j, "k": k})
        assert {name: tuple(x.shape[1:]) for name, x in found.values.items()} == {
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
    found = model.sample(count=2, steps=20, seed=0, trace=lambda k, values: seen.append(k))
    again = model.sample(count=2, steps=20, seed=0, sampler="dpm-solver", spacing="log-snr")
    assert seen == list(range(20)) and all(torch.equal(found[name], again[name]) for name in found.values)


def test_trained_a_little_it_knows_the_mean_of_what_it_saw():
    # a list and its sorted list; the permutation and the products are to be found
    g = unn.FactorGraph("two", n=2)
    u, s = g.variable("u", "n", unn.SquaredNorm()), g.variable("s", "n", unn.SquaredNorm())
    g.factor(Depends(s["i"], u["j"], ordered="i"))
    torch.manual_seed(0)
    model = Diffusion(Denoiser(g, width=16, heads=2, depth=2))
    generator = torch.Generator().manual_seed(0)

    def batch(count):
        values = sorted_lists(count, 2, False, generator)
        return {name: values[name] for name in "us"}

    model.standardise(batch(500))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    given = {"u": torch.ones(1, 2, dtype=torch.bool)}
    for _ in range(120):
        optimizer.zero_grad()
        model.loss(batch(64), given).backward()
        optimizer.step()
    held = batch(200)
    found = model.sample({"u": held["u"]}, 200, steps=10, seed=0)
    assert torch.equal(found["u"], held["u"])
    assert float((found["s"] - held["s"]).square().mean()) < 0.25 * float(held["s"].var())


class StopError(Exception):
    """Ends a run in the middle of a step."""


TRAINING = TrainingConfig(
    steps=12, batch=4, rate=1e-3, clip=1.0, ema=0.9, checkpoint_every=5, evaluate_every=6, log_every=3
)
TINY = DenoiserOptions(width=8, depth=2, heads=2, sampling_steps=2)
TOKENS = replace(TINY, self_conditioning="tokens", passes=2)
RUNS = {
    "a stream of grids": (
        SudokuProblem,
        SudokuProblem().config_for(None)(model=replace(TINY, self_conditioning="none"), training=TRAINING),
    ),
    "ten grids": (
        SudokuProblem,
        SudokuProblem().config_for(None)(examples=10, model=TINY, training=replace(TRAINING, batch=3)),
    ),
    "sizes that vary": (
        FactorisationProblem,
        FactorisationProblem().config_for(None)(vary=True, observe="any", model=TOKENS, training=TRAINING),
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_stops_ends_with_the_numbers_of_one_that_does_not(name, tmp_path):
    kind, config = RUNS[name]
    problem = kind()

    def network(seed):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = problem.network(config, {})
            problem.prepare(config, network)
            return network

    whole = fit(network(0), problem.task(config), config.training)
    task, left = problem.task(config), [8]
    plain = task.loss

    def stopping(*given):
        left[0] -= 1
        if left[0] < 0:
            raise StopError
        return plain(*given)

    task.loss = stopping
    with pytest.raises(StopError):
        fit(network(0), task, config.training, tmp_path)
    result = fit(network(9), problem.task(config), config.training, tmp_path)
    assert result.step == whole.step == 12
    assert same_tensors(tensors_of(result.network), tensors_of(whole.network))
    assert without_times(result.history) == without_times(whole.history)


# -- revealing instead of noise ------------------------------------------------------------------------------


def twins():
    """Two categories of three options and a binary value, all tied together."""
    g = unn.FactorGraph("twins", n=2, c=3)
    K, B = g.variable("K", "n | c", unn.Entropy()), g.variable("B", "m", unn.BinaryEntropy())
    g.factor(Clique(K["i v"], B["j"]))
    return g


def masked(graph, seed=0, **sizes):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = MaskedDiffusion(Denoiser(graph, width=8, heads=2, depth=2, sizes=sizes))
        for p in model.denoiser.parameters():
            torch.nn.init.normal_(p, std=p.shape[-1] ** -0.5 if p.ndim > 1 else 0.5)
    return model.double().eval()


SHARES = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)


def knowing(model):
    """A network that knows the distribution: both categories are the same, with these shares, and binary
    values say whether it is the first."""

    def network(rows, level, observed, frame, memory=None):
        K, B = rows[:, :6].view(-1, 2, 3), rows[:, 6:].view(len(rows), -1, 2)
        scores = SHARES.log().expand(len(rows), 3)
        for k in range(2):
            scores = torch.where(observed[:, k, None], 50.0 * (K[:, k] > 0), scores)
        for k in range(B.shape[1]):
            first = torch.tensor([0.0, -50.0, -50.0])
            scores = scores + torch.where(
                observed[:, 2 + k, None], torch.where(B[:, k, 1:] > 0, first, -50 - first), 0
            )
        chance = scores.softmax(1)[:, :1]
        binary = torch.cat([1 - chance, chance], 1).clamp(min=1e-12).log()
        return torch.cat([scores, scores, binary.repeat(1, B.shape[1])], 1)

    return with_network(model, network)


def test_revealed_one_by_one_samples_have_the_distribution_that_the_network_knows():
    model = knowing(masked(twins(), m=2))
    found = model.sample(count=4000, seed=0, sizes={"m": 2})
    K, B = found["K"].argmax(2), found["B"]
    assert torch.equal(K[:, 0], K[:, 1]) and torch.equal(B, (K == 0).double())
    shares = K[:, 0].bincount(minlength=3) / 4000
    assert (shares - SHARES).abs().max() < 5 * 0.5 / 4000**0.5
    # all at once they know nothing of one another
    K = model.sample(count=4000, seed=0, steps=1, sizes={"m": 2})["K"].argmax(2)
    assert float((K[:, 0] == K[:, 1]).double().mean()) == pytest.approx(
        float(SHARES.square().sum()), abs=5 * 0.5 / 4000**0.5
    )
    # what is given is known from the start
    third = torch.tensor([[[0, 0, 1.0], [0, 0, 0]]])
    found = model.sample({"K": unn.Partial(third, torch.tensor([[True, False]]))}, 20, seed=0, sizes={"m": 2})
    assert (found["K"].argmax(2) == 2).all() and not found["B"].any()


def test_the_loss_of_masked_diffusion_is_the_cross_entropy_of_masked_nodes():
    model = masked(twins(), m=1)
    K = torch.nn.functional.one_hot(torch.arange(300) % 3, 3).double()[:, None].expand(-1, 2, -1)
    values = {"K": K, "B": K[:, :1, 0]}
    nothing = {"B": torch.zeros(1, 1, dtype=torch.bool)}
    torch.manual_seed(0)
    assert float(
        with_network(model, lambda rows, *_: torch.zeros_like(rows)).loss(values, {"B": ~nothing["B"]}, m=1)
    ) == pytest.approx(math.log(3))
    clean = model.example(values, nothing, m=1)[0]
    assert float(with_network(model, lambda *_: 100 * clean).loss(values, nothing, m=1)) == pytest.approx(
        0, abs=1e-6
    )
    everything = {"K": torch.ones(1, 2, dtype=torch.bool), "B": ~nothing["B"]}
    assert (
        float(with_network(model, lambda rows, *_: torch.randn_like(rows)).loss(values, everything, m=1)) == 0
    )
    with torch.random.fork_rng(devices=[]):
        fresh = masked(twins(), m=1)
        fresh.loss(values, nothing, m=1).backward()
        assert all(p.grad.isfinite().all() for p in fresh.parameters())


@pytest.mark.parametrize("steps", [None, 1, 3, 1000])
def test_revealing_evaluates_the_network_once_per_step_and_keeps_given_values(steps):
    model = masked(sudoku(2, 2))
    calls = []
    watched(model, lambda rows, *_: calls.append(len(rows)))
    X = one_hot(all_grids(2, 2)[:3], 4)
    where = torch.zeros(3, 4, 4, dtype=torch.bool)
    where[:, :2] = True
    found = model.sample({"X": unn.Partial(X, where)}, 3, steps=steps, seed=0)
    assert len(calls) == min(steps or 8, 8) and torch.equal(found["X"][where], X[where].double())
    assert ((found["X"] == 0) | (found["X"] == 1)).all() and (found["X"].sum(3) == 1).all()
    calls.clear()
    assert torch.equal(model.sample({"X": X}, 3, steps=steps)["X"], X.double()) and not calls


@pytest.mark.parametrize("steps", [None, 1, 3, 5])
def test_a_revealed_sample_depends_on_its_own_seed_alone(steps):
    model = masked(sudoku(2, 2))
    X = one_hot(all_grids(2, 2)[:4], 4)
    # some have more to reveal than others
    where = torch.zeros(4, 4, 4, dtype=torch.bool)
    where[1, 0], where[2, :3] = True, True
    given_all = {"X": unn.Partial(X, where)}
    whole = model.sample(given_all, 4, steps=steps, seed=[1, 2, 3, 4])
    assert torch.equal(model.sample(given_all, 4, steps=steps, seed=[1, 2, 3, 4])["X"], whole["X"])
    assert torch.equal(model.sample(given_all, 4, steps=steps, seed=[1, 2, 3, 4], at_once=1)["X"], whole["X"])
    order = [2, 0, 3, 1]
    mixed = model.sample(
        {"X": unn.Partial(X[order], where[order])}, 4, steps=steps, seed=[3, 1, 4, 2], at_once=2
    )
    assert torch.equal(mixed["X"], whole["X"][order])
    assert not torch.equal(model.sample(given_all, 4, steps=steps, seed=[5, 6, 7, 8])["X"], whole["X"])


def test_revealing_checks_tries_and_refuses_as_noise_does():
    model = masked(sudoku(2, 2))
    found = model.sample(count=6, steps=2, verify=True, tries=3, seed=0)
    assert torch.equal(found.valid, violations(found["X"]) == 0) and (found.tries[~found.valid] == 3).all()
    for options in (
        {"count": 0},
        {"tries": 0},
        {"at_once": 0},
        {"steps": 0},
        {"steps": 1.5},
        {"count": 2, "seed": [1]},
        {"given": {"Y": 1}},
    ):
        with pytest.raises(unn.UnnError):
            model.sample(**options)
    with pytest.raises(unn.DeclarationError, match=says("'A'", "continuous", "unn.Diffusion")):
        MaskedDiffusion(Denoiser(declared(), width=8, heads=2))


# -- what is refused -----------------------------------------------------------------------------------------


def bad_calls():
    values = values_of(2)
    K = values["K"]
    yield "sampler", {"sampler": "ancestal"}, ["unknown sampler 'ancestal'", "Did you mean 'ancestral'?"]
    yield (
        "sampler of nothing known",
        {"sampler": "q"},
        ["unknown sampler 'q'", "ancestral, churn, ddim, dpm-solver, dpm-solver-sde, heun"],
    )
    yield "spacing", {"spacing": "log_snr"}, ["spacing 'log_snr'", "log-snr"]
    for name in ("count", "tries", "at_once"):
        for number in (0, -1, 1.5, True):
            yield f"{name} {number}", {name: number}, [name, ">= 1", repr(number)]
    for number in (0, -3, 2.0):
        yield f"steps {number}", {"steps": number}, ["steps >= 1", repr(number)]
    yield "unknown", {"given": {"Ka": K}}, ["'four'", "'Ka'", "Did you mean 'K'?"]
    yield "NaN", {"given": {"A": torch.full((1, 4), NAN)}}, ["'A'", "NaN"]
    yield "infinite", {"given": {"V": torch.full((1, 4, 2), INF)}}, ["'V'", "infinite"]
    yield "no category", {"given": {"K": torch.zeros(1, 4, 3)}}, ["'K'", "3 options", "one-hot"]
    yield "category out of range", {"given": {"K": 2 * K[:1]}}, ["'K'", "one-hot"]
    yield (
        "numbers of categories",
        {"given": {"K": torch.tensor([[0, 1, 2, 3]])}},
        ["'K'", "(batch, 4, 3)", "(1, 4)"],
    )
    yield "not binary", {"given": {"B": torch.full((1, 4), 0.3)}}, ["'B'", "0 or 1"]
    yield "shape", {"given": {"A": torch.zeros(1, 5)}}, ["'A'", "(batch, 4)", "(1, 5)"]
    yield "without a batch", {"given": {"A": torch.zeros(4)}}, ["'A'", "(batch, 4)", "(4,)"]
    yield (
        "counts that contradict",
        {"given": {"A": torch.zeros(2, 4)}, "count": 3},
        ["'A'", "2 batch elements", "3 are to be sampled"],
    )
    yield (
        "given counts that contradict",
        {"given": {"A": torch.zeros(2, 4), "B": torch.zeros(3, 4)}, "count": 2},
        ["'B'", "3 batch elements"],
    )
    yield (
        "mask",
        {"given": {"A": unn.Partial(torch.zeros(1, 4), torch.ones(1, 3, dtype=torch.bool))}},
        ["'A'", "mask"],
    )
    yield "seeds", {"count": 3, "seed": [1, 2]}, ["2 seeds", "3 samples"]
    yield "negative seed", {"seed": -1}, ["seed", "-1"]
    yield "size of a static axis", {"sizes": {"n": 5}}, ["'n'", "4", "5"]
    yield "size of an unknown axis", {"sizes": {"q": 5}}, ["'q'"]


@pytest.mark.parametrize(
    ("options", "words"), [pytest.param(options, words, id=name) for name, options, words in bad_calls()]
)
def test_what_cannot_be_sampled_is_refused_before_anything_is_computed(options, words):
    def network(*_):
        raise AssertionError("nothing should be computed")

    model = with_network(made(), network)
    with pytest.raises(unn.UnnError, match=says(*words)):
        model.sample(**{"steps": 2, **options})


def test_unknown_predictions_are_refused():
    denoiser = Denoiser(declared(), width=8, heads=2)
    with pytest.raises(
        unn.DeclarationError, match=says("unknown prediction 'velocit'", "Did you mean 'velocity'?")
    ):
        Diffusion(denoiser, prediction="velocit")
    with pytest.raises(unn.DeclarationError, match=says("unknown prediction 'eps'", "velocity", "x0")):
        Diffusion(denoiser, prediction="eps")


def bad_examples():
    values, nothing = values_of(2), torch.zeros(2, 16, dtype=torch.bool)
    yield "missing", {name: values[name] for name in "AV"}, nothing, ["missing: B, K"]
    yield "unknown", {**values, "Q": values["A"]}, nothing, ["'Q'"]
    yield "NaN", {**values, "A": NAN * values["A"]}, nothing, ["'A'", "NaN"]
    yield "batches", {**values, "A": values_of(3)["A"]}, nothing, ["batch", "2, 3"]
    yield "nodes", values, nothing[:, 1:], ["(2, 16)", "(2, 15)"]
    yield "dtype", values, nothing.float(), ["bool"]
    yield "batch of nodes", values, nothing[:1], ["(2, 16)", "(1, 16)"]
    yield "unknown observed", values, {"Ba": nothing[:, :4]}, ["'Ba'", "Did you mean 'B'?"]
    yield "shape of observed", values, {"B": nothing[:, :3]}, ["'B'", "(2, 4)"]
    yield "batch of observed", values, {"B": torch.zeros(3, 4, dtype=torch.bool)}, ["'B'"]
    yield "dtype of observed", values, {"B": torch.ones(2, 4)}, ["'B'", "bool"]


@pytest.mark.parametrize(
    ("values", "observed", "words"), [pytest.param(*rest, id=name) for name, *rest in bad_examples()]
)
def test_examples_that_do_not_fit_are_refused(values, observed, words):
    with pytest.raises(unn.ObservationError, match=says(*words)):
        made().loss(values, observed)
