"""Models of conditional distributions: standardised values, samples given values, seeds and batches, the
trace, what is refused."""

import copy

import pytest
import torch
from support.diffusion import alike, made, values_of, watched, with_network
from support.helpers import INF, NAN, says
from support.toy import same_tensors
from torch._dynamo.utils import counters

import unn
from factors import Clique, Depends
from unn.diffusion import (
    SAMPLERS,
    VAEAC,
    Diffusion,
    LogUniform,
    MaskedDiffusion,
    Regressor,
    Within,
    guided_samples,
)
from unn.errors import DataError
from unn.programs import Normal, trace_plates
from unn.runs.weights import copy_weights

EVERY_SAMPLER = pytest.mark.parametrize("sampler", list(SAMPLERS))


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
    samples = with_network(other, lambda rows, *_: torch.zeros_like(rows)).sample(count=2, steps=3, seed=0)
    torch.testing.assert_close(samples["A"], model.offsets[0].expand(2, 4))


def test_a_variable_that_never_changes_does_no_harm():
    model = made()
    model.standardise({**values_of(20), "V": torch.full((20, 4, 2), 7.0)})
    assert model.scales[1] > 0 and model.offsets[1] == 7
    torch.manual_seed(0)
    values = {**values_of(5), "V": torch.full((5, 4, 2), 7.0)}
    assert model.loss(values, torch.zeros(5, 16, dtype=torch.bool)).isfinite()
    assert model.sample({"V": values["V"][:1]}, 2, steps=2)["A"].isfinite().all()


@EVERY_SAMPLER
@pytest.mark.parametrize("names", ["A", "V", "B", "K", "AVBK", ""])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_given_values_come_back_bit_for_bit_and_the_others_are_of_their_kind(sampler, names, dtype):
    model = made().to(dtype)
    model.standardise({**values_of(9), "A": 2 + 3 * values_of(9)["A"]})
    values = {name: x / 3 if name in "AV" else x for name, x in values_of(3, seed=1, dtype=dtype).items()}
    samples = model.sample({name: values[name] for name in names}, 3, steps=3, sampler=sampler, seed=0)
    assert (
        list(samples.values) == list("AVBK") and samples.valid is None and samples.tries.tolist() == [1, 1, 1]
    )
    for name, x in samples.values.items():
        assert (
            x.shape == values[name].shape
            and x.isfinite().all()
            and torch.equal(x, values[name]) is (name in names)
        ), name
    assert ((samples["B"] == 0) | (samples["B"] == 1)).all()
    assert ((samples["K"] == 0) | (samples["K"] == 1)).all() and (samples["K"].sum(2) == 1).all()


@EVERY_SAMPLER
def test_values_given_in_part_come_back_bit_for_bit_where_they_are_given(sampler):
    model = made(seed=2)
    values = {name: x / 3 if name in "AV" else x for name, x in values_of(4, seed=1).items()}
    where = torch.rand(4, 4, generator=torch.Generator().manual_seed(0)) < 0.5
    samples = model.sample(
        {name: unn.Partial(x, where) for name, x in values.items()}, 4, steps=3, sampler=sampler, seed=0
    )
    for name, x in samples.values.items():
        assert torch.equal(x[where], values[name][where])
        assert not torch.equal(x[~where], values[name][~where])
    # what stands elsewhere changes nothing
    other = {
        name: unn.Partial(torch.where(where.view(4, 4, *(1,) * (x.ndim - 2)), x, NAN), where)
        for name, x in values.items()
    }
    again = model.sample(other, 4, steps=3, sampler=sampler, seed=0)
    assert same_tensors(again.values, samples.values)


def test_one_given_value_is_for_all_samples():
    model, values = made(), values_of(1)
    samples = model.sample(
        {"A": values["A"], "K": unn.Partial(values["K"], torch.tensor([[True, False, False, True]]))},
        5,
        steps=2,
    )
    assert torch.equal(samples["A"], values["A"].expand(5, 4)) and torch.equal(
        samples["K"][:, [0, 3]], values["K"][:, [0, 3]].expand(5, 2, 3)
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
    samples = model.sample({"K": K, "T": T}, 2, steps=2)
    assert torch.equal(samples["K"], K) and torch.equal(samples["T"], T)
    samples = model.sample({"K": unn.Partial(K, torch.tensor([True, False]))}, 2, steps=2)
    assert torch.equal(samples["K"][0], K[0])
    values = {"A": torch.zeros(2, 2), "K": K, "T": T}
    assert model.loss(values, {"K": torch.tensor([True, False])}).isfinite()


def test_all_that_is_given_comes_back_without_a_question():
    model = made()
    values = values_of(2)
    samples = model.sample(values, 2, steps=2)
    assert same_tensors(samples.values, values)


# -- seeds and batches ---------------------------------------------------------------------------------------


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
    samples = model.sample(
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
    torch.testing.assert_close(last["A"], samples["A"])
    assert torch.equal(last["K"].argmax(2), samples["K"].argmax(2)) and torch.equal(
        (last["B"] > 0.5).double(), samples["B"]
    )
    # noise goes down
    spread = [float(values["A"].std()) for _, values in seen]
    assert spread[0] > spread[-1]
    assert same_tensors(model.sample(given, 3, steps=5, sampler=sampler, seed=0).values, samples.values)


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


def test_sizes_of_axes_are_those_of_complete_evidence_where_none_are_given():
    def program(t, points):
        t.sample("x", Normal(t.sample("m", Normal()), 1.0), points)

    plated = trace_plates(program, {"points": (1, 9)})
    torch.manual_seed(0)
    model = unn.Diffusion(unn.Denoiser(plated.graph, width=8, depth=1, heads=1))
    values = plated.draw(5, seed=0, points=3)
    model.standardise(values)
    whole = model.sample({"x": values["x"]}, 5, steps=2, seed=1)
    named = model.sample({"x": values["x"]}, 5, steps=2, seed=1, sizes={"points": 3})
    assert torch.equal(whole["m"], named["m"])
    observed = {"x": torch.ones(1, 3, dtype=torch.bool)}
    losses = []
    for sizes in ({}, {"points": 3}):
        torch.manual_seed(0)
        losses.append(float(model.loss(values, observed, **sizes).detach()))
    assert losses[0] == losses[1]
    with pytest.raises(unn.DeclarationError, match=says("points")):
        model.sample({"m": values["m"]}, 5, steps=2)


def test_samples_that_are_no_numbers_are_an_error():
    model = made()
    model.standardise(values_of(50))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(NAN)
    with pytest.raises(unn.InferenceError, match=says("samples of variable", "NaN")):
        model.sample({}, 2, steps=2, seed=0)


# -- compilation ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Diffusion, MaskedDiffusion, Regressor, VAEAC])
def test_a_compiled_model_draws_the_same_samples_and_is_saved_as_before(kind):
    graph = unn.FactorGraph("choices", n=4, c=3)
    B, K = graph.variable("B", "n", unn.BinaryEntropy()), graph.variable("K", "n | c", unn.Entropy())
    graph.factor(Depends(B["i"], K["i v"]))
    torch.manual_seed(0)
    network = graph if kind is VAEAC else unn.Denoiser(graph, width=8, depth=2, heads=2)
    model = kind(network).double().eval()
    names = list(model.state_dict())
    expected = model.sample(count=3, seed=0)
    torch._dynamo.reset()
    counters.clear()
    model.compile(backend="eager")
    samples = model.sample(count=3, seed=0)
    assert counters["stats"]["unique_graphs"] >= 1
    assert same_tensors(samples.values, expected.values)
    assert list(model.state_dict()) == names
    assert same_tensors(copy.deepcopy(model).sample(count=3, seed=0).values, expected.values)


def test_sampling_at_a_larger_size_than_any_in_training_is_said():
    torch.manual_seed(0)
    g = unn.FactorGraph("chain")
    X = g.variable("X", "n", unn.SquaredNorm())
    g.factor(Clique(X["i"]))
    model = unn.Diffusion(unn.Denoiser(g, width=8, depth=1, heads=1))
    model.sample(count=1, steps=1, seed=0, sizes={"n": 5})
    model.train()
    for n in (4, 2):
        model.loss({"X": torch.randn(3, n)}, torch.zeros(3, n, dtype=torch.bool))
    model.eval()
    model.sample(count=1, steps=1, seed=0, sizes={"n": 4})
    with pytest.warns(UserWarning, match=says("axis 'n'", "5 entries", "at most 4 in training")):
        model.sample(count=1, steps=1, seed=0, sizes={"n": 5})
    with pytest.warns(UserWarning, match="at most 4 in training"):
        model.log_prob({"X": torch.zeros(1, 6)}, steps=1)
    with pytest.warns(UserWarning, match="at most 4 in training"):
        guided_samples(model, [Within("X", -9.0)], count=2, steps=1, seed=0, sizes={"n": 6})
    # weights keep the sizes, and those of earlier versions do not say them
    again = unn.Diffusion(unn.Denoiser(g, width=8, depth=1, heads=1))
    again.load_state_dict(model.state_dict())
    assert again.largest_sizes.tolist() == [4]
    earlier = {name: x for name, x in model.state_dict().items() if name != "largest_sizes"}
    again.load_state_dict(earlier)
    again.sample(count=1, steps=1, seed=0, sizes={"n": 5})
    for tensors in (model.state_dict(), earlier):
        copy_weights({f"0.{name}": x for name, x in tensors.items()}, torch.nn.Sequential(again), "a run")
    assert again.largest_sizes.tolist() == [4]
    wrong = {name: x for name, x in earlier.items() if name != "scales"}
    with pytest.raises(DataError, match="scales"):
        copy_weights(wrong, again, "a run")
