"""The training loop: batches, gradients of parts, schedules, averages, early stopping, precision."""

import itertools
import math
import signal
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.helpers import says
from support.toy import ToyTask, same_tensors, tensors_of, toy_network, without_times

import unn
from unn.training import DatasetExamples, Examples, Task, TensorExamples, TrainingConfig, fit
from unn.training.batches import indices_of, load_parts, seed_of, steps_in_epoch
from unn.training.interrupt import Interrupt
from unn.training.state import rate_factor

SHORT = TrainingConfig(epochs=3, batch=8, rate=0.05)


# -- batches -------------------------------------------------------------------------------------------------


@given(length=st.integers(1, 40), batch=st.integers(1, 50), seed=st.integers(0, 3), epoch=st.integers(0, 3))
def test_every_epoch_shows_every_example_once_in_an_order_of_its_own(length, batch, seed, epoch):
    steps = steps_in_epoch(length, batch)
    seen = torch.cat([indices_of(epoch * steps + k, length, batch, seed) for k in range(steps)])
    assert sorted(seen.tolist()) == list(range(length))
    if length > 20:
        assert (
            seen.tolist()
            != torch.cat(
                [indices_of((epoch + 1) * steps + k, length, batch, seed) for k in range(steps)]
            ).tolist()
        )


def test_a_stream_shows_every_number_once():
    seen = torch.cat([indices_of(step, 0, 7, 0) for step in range(5)])
    assert seen.tolist() == list(range(35))


@given(batch=st.integers(1, 20), of=st.integers(1, 6), start=st.integers(0, 5))
@settings(max_examples=25)
def test_the_parts_of_a_batch_are_the_batch_and_do_not_depend_on_where_loading_began(batch, of, start):
    examples = TensorExamples(torch.arange(17))
    everything = [list(load_parts(examples, 0, 7, batch, 3, range(part, part + 1), of)) for part in range(of)]
    later = [list(load_parts(examples, start, 7, batch, 3, range(part, part + 1), of)) for part in range(of)]
    for step in range(7):
        seen = [
            x for part in everything for piece in part[step] if piece.count for x in piece.batch[0].tolist()
        ]
        assert sorted(seen) == sorted(indices_of(step, 17, batch, 3).tolist())
        if step >= start:
            assert all(
                torch.equal(a[step][0].batch[0], b[step - start][0].batch[0])
                for a, b in zip(everything, later, strict=True)
            )


class Noisy(Examples):
    """A stream drawn from the generator of each part."""

    def __len__(self):
        return 0

    def batch(self, indices, generator):
        return torch.rand(len(indices), generator=generator)


def test_random_batches_do_not_depend_on_the_number_of_workers():
    alone = list(load_parts(Noisy(), 0, 4, 6, 0, range(2), 2))
    several = list(load_parts(Noisy(), 0, 4, 6, 0, range(2), 2, workers=2))
    assert all(
        torch.equal(a.batch, b.batch)
        for one, other in zip(alone, several, strict=True)
        for a, b in zip(one, other, strict=True)
    )
    assert len({float(part.batch[0]) for step in alone for part in step}) == 8


class Expanded(Examples):
    """Batches of tensors whose entries share memory, in every container."""

    def __len__(self):
        return 0

    def batch(self, indices, generator):
        x = torch.ones(1).expand(len(indices))
        return {"x": x, "parts": [(1.0, x), "name"]}


@pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")
def test_expanded_tensors_get_memory_of_their_own_where_batches_are_pinned():
    for pin in (False, True):
        (part,) = next(load_parts(Expanded(), 0, 1, 4, 0, range(1), 1, pin=pin))
        x, parts = part.batch["x"], part.batch["parts"]
        assert torch.equal(x, torch.ones(4)) and parts[0][0] == 1.0 and parts[1] == "name"
        assert x.is_contiguous() == parts[0][1].is_contiguous() == pin


def test_seeds_of_different_keys_differ():
    keys = [(a, b, c) for a in range(5) for b in range(5) for c in range(5)]
    assert len({seed_of(*key) for key in keys}) == len(keys)


def test_datasets_of_torch_can_be_trained_on():
    inputs = torch.randn(10, 2)
    examples = DatasetExamples(torch.utils.data.TensorDataset(inputs, torch.arange(10)))
    batch = examples.batch(torch.tensor([3, 1]), torch.Generator())
    assert torch.equal(batch[0], inputs[[3, 1]]) and batch[1].tolist() == [3, 1]


@pytest.mark.parametrize("tensors", [(), (torch.zeros(3), torch.zeros(4)), (torch.zeros(0, 2),)])
def test_examples_without_one_common_number_are_refused(tensors):
    with pytest.raises(unn.DataError, match=says("common number of examples")):
        TensorExamples(*tensors)


# -- one loop ------------------------------------------------------------------------------------------------


def test_training_lowers_the_loss_and_is_deterministic_under_its_seed():
    first, again, other = (
        fit(toy_network(), ToyTask(), replace(SHORT, epochs=20, seed=seed)) for seed in (0, 0, 1)
    )
    assert first.history[-1]["loss"] < 0.7 * first.history[0]["loss"] and first.history[-1]["accuracy"] > 0.6
    assert without_times(first.history) == without_times(again.history)
    assert same_tensors(tensors_of(first.network), tensors_of(again.network))
    assert without_times(first.history) != without_times(other.history)


def test_training_leaves_the_generator_and_the_threads_of_its_caller_as_they_were():
    torch.manual_seed(5)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    fit(toy_network(), ToyTask(), replace(SHORT, epochs=1, threads=threads + 1))
    assert torch.equal(before, torch.get_rng_state()) and torch.get_num_threads() == threads


def test_every_step_draws_dropout_masks_of_its_own():
    task = ToyTask()
    # with one and the same example in all rows, only the masks can tell the steps apart
    task.inputs[:], task.labels[:] = task.inputs[0].clone(), task.labels[0].clone()
    config = TrainingConfig(steps=4, batch=50, rate=1e-9, log_every=1)
    losses = [entry["loss"] for entry in fit(toy_network(dropout=0.5), task, config).history]
    assert len({round(loss, 5) for loss in losses}) == 4


def test_evaluating_and_logging_more_often_changes_nothing():
    seldom = fit(toy_network(), ToyTask(), SHORT)
    often = fit(toy_network(), ToyTask(), replace(SHORT, log_every=1, evaluate_every=2))
    assert same_tensors(tensors_of(seldom.network), tensors_of(often.network))
    assert len(often.history) == 21


@given(batch=st.integers(2, 50), accumulate=st.integers(1, 5))
@settings(max_examples=15)
def test_a_batch_in_parts_gives_the_losses_and_weights_of_the_whole_batch(batch, accumulate):
    # Adam divides by the gradient's own size, and so makes rounding as large as a step where a gradient is
    # almost zero
    config = TrainingConfig(steps=5, batch=batch, optimizer="sgd", rate=0.5, log_every=1)
    whole = fit(toy_network(dropout=0), ToyTask(), config)
    parts = fit(toy_network(dropout=0), ToyTask(), replace(config, accumulate=min(accumulate, batch)))
    assert [e["loss"] for e in parts.history] == pytest.approx([e["loss"] for e in whole.history], abs=1e-5)
    for name, x in tensors_of(whole.network).items():
        torch.testing.assert_close(tensors_of(parts.network)[name], x, atol=1e-4, rtol=1e-3)


def test_parts_count_by_their_weights():
    class Weighted(Task):
        """The mean over the entries that are not zero."""

        def examples(self):
            return TensorExamples(torch.tensor([[1.0, 0, 0], [2.0, 3.0, 4.0]]))

        def weight(self, batch, count):
            return float((batch[0] != 0).sum())

        def loss(self, network, batch):
            (x,) = batch
            return (network.weight.sum() * x).sum() / (x != 0).sum()

    def weight(accumulate):
        network = torch.nn.Linear(1, 1)
        torch.nn.init.ones_(network.weight)
        config = TrainingConfig(
            steps=1, batch=2, accumulate=accumulate, optimizer="sgd", rate=0.1, schedule="constant"
        )
        return fit(network, Weighted(), config).network.weight.item()

    assert weight(1) == pytest.approx(1 - 0.1 * 10 / 4) and weight(2) == pytest.approx(weight(1))


def test_the_step_is_that_of_the_optimizer_written_by_hand():
    task, ours, theirs = ToyTask(), toy_network(dropout=0), toy_network(dropout=0)
    config = TrainingConfig(
        steps=6,
        batch=9,
        optimizer="adamw",
        rate=0.01,
        weight_decay=0.1,
        schedule="linear",
        warmup=0.5,
        clip=0.5,
        seed=3,
    )
    fit(ours, task, config)
    # fused as in training; how a processor multiplies and adds is no part of the optimizer
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=0.01, weight_decay=0.1, fused=True)
    for step in range(6):
        optimizer.param_groups[0]["lr"] = 0.01 * min(1, (step + 1) / 3) * (1 - step / 6)
        rows = indices_of(step, 50, 9, 3)
        optimizer.zero_grad()
        task.loss(theirs, (task.inputs[rows], task.labels[rows])).backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        optimizer.step()
    expected = tensors_of(theirs)
    for name, weights in tensors_of(ours).items():
        torch.testing.assert_close(weights, expected[name], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("schedule", ["constant", "cosine", "linear"])
def test_schedules_rise_to_the_full_rate_and_end_where_they_should(schedule):
    factor = rate_factor(TrainingConfig(schedule=schedule, warmup=0.1), 100)
    rates = [factor(step) for step in range(101)]
    assert rates[0] == pytest.approx(0.1, rel=0.02) and max(rates) == pytest.approx(1, abs=0.12)
    assert all(a < b for a, b in itertools.pairwise(rates[:10]))
    assert all(a >= b for a, b in itertools.pairwise(rates[9:]))
    assert rates[100] == pytest.approx(1 if schedule == "constant" else 0, abs=1e-12)


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_schedules_end_at_their_floor(schedule):
    factor = rate_factor(TrainingConfig(schedule=schedule, warmup=0.1, floor=0.2), 100)
    plain = rate_factor(TrainingConfig(schedule=schedule, warmup=0.1), 100)
    assert factor(100) == pytest.approx(0.2, abs=1e-12)
    assert all(factor(step) == pytest.approx(0.2 + 0.8 * plain(step)) for step in range(9, 101))


def test_steps_with_a_large_gradient_are_skipped_and_counted():
    class Spikes(ToyTask):
        """A loss whose gradient is a thousand times larger at every third step."""

        calls = 0

        def loss(self, network, batch):
            self.calls += 1
            return super().loss(network, batch) * (1000 if self.calls % 3 == 0 else 1)

    config = TrainingConfig(steps=7, batch=9, skip=50.0, log_every=7)
    ours = fit(toy_network(dropout=0), Spikes(), config)
    assert ours.history[-1]["skipped"] == 2
    unskipped = fit(toy_network(dropout=0), ToyTask(), replace(config, skip=0.0))
    assert "skipped" not in unskipped.history[-1]
    assert not same_tensors(tensors_of(ours.network), tensors_of(unskipped.network))


def test_the_average_is_the_exponential_moving_average_of_the_weights():
    seen = []

    class Watched(ToyTask):
        def loss(self, network, batch):
            seen.append(tensors_of(network))
            return super().loss(network, batch)

    network = toy_network()
    result = fit(network, Watched(), replace(SHORT, ema=0.9))
    weights = [*seen[1:], tensors_of(network)]
    for name, average in tensors_of(result.network).items():
        expected = weights[0][name]
        for x in weights[1:]:
            expected = 0.9 * expected + 0.1 * x[name]
        torch.testing.assert_close(average, expected)
    assert not same_tensors(tensors_of(result.network), tensors_of(network))


def test_training_stops_early_and_goes_back_to_the_best_weights():
    class Worse(ToyTask):
        """Best at the third evaluation."""

        def __init__(self):
            super().__init__()
            self.scores = iter([0.1, 0.2, 0.9, 0.3, 0.4, 0.5, 0.6])
            self.weights = []

        def evaluate(self, network):
            self.weights.append(tensors_of(network))
            return {"accuracy": next(self.scores)}

    task = Worse()
    result = fit(toy_network(), task, replace(SHORT, epochs=7, patience=2))
    assert [entry["accuracy"] for entry in result.history] == [0.1, 0.2, 0.9, 0.3, 0.4]
    assert same_tensors(tensors_of(result.network), task.weights[2])
    assert not same_tensors(task.weights[4], task.weights[2])


def test_a_monitor_that_is_not_measured_is_named():
    class Misspelt(ToyTask):
        monitor = "acuracy"

    with pytest.raises(unn.ArgumentError, match=says("Misspelt.monitor", "acuracy", "accuracy")):
        fit(toy_network(), Misspelt(), SHORT)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_every_precision_trains_and_keeps_its_weights_in_float32(precision):
    result = fit(toy_network(), ToyTask(), replace(SHORT, epochs=10, precision=precision))
    assert result.history[-1]["loss"] < result.history[0]["loss"]
    assert all(x.dtype == torch.float32 for x in tensors_of(result.network).values())


def test_steps_that_overflow_in_float16_are_left_out_without_a_word():
    class Steep(ToyTask):
        def loss(self, network, batch):
            return super().loss(network, batch) * 1000

    result = fit(toy_network(), Steep(), replace(SHORT, epochs=15, precision="float16"))
    assert result.history[-1]["loss"] < result.history[0]["loss"]


def test_a_stream_without_an_end_needs_a_number_of_steps():
    class Endless(ToyTask):
        def examples(self):
            return Noisy()

        def loss(self, network, batch):
            return sum(p.square().sum() for p in network.parameters()) * batch.mean()

    with pytest.raises(unn.ArgumentError, match=says("stream without an end", "--steps")):
        fit(toy_network(), Endless(), SHORT)
    assert fit(toy_network(), Endless(), replace(SHORT, steps=20)).step == 20


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_ends_training_and_says_what_to_do(bad):
    class Diverging(ToyTask):
        calls = 0

        def loss(self, network, batch):
            self.calls += 1
            return super().loss(network, batch) * (bad if self.calls == 4 else 1)

    with pytest.raises(unn.DivergenceError, match=says("step 4", "no checkpoint yet", "--rate")):
        fit(toy_network(), Diverging(), SHORT)


def test_weights_that_are_not_finite_are_never_saved(tmp_path):
    class Exploding(ToyTask):
        """A finite loss with an infinite gradient."""

        def loss(self, network, batch):
            return super().loss(network, batch) + 0 * torch.sqrt(0 * network.graph.W).sum()

        def evaluate(self, network):
            return {"accuracy": 0.0}

    with pytest.raises(unn.DivergenceError, match=says("declaration.W", "no checkpoint yet")):
        fit(toy_network(), Exploding(), replace(SHORT, steps=1), tmp_path)
    assert not (tmp_path / "checkpoints").exists() and not (tmp_path / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("epochs", 0),
        ("steps", -1),
        ("batch", 0),
        ("accumulate", 0),
        ("accumulate", 9),
        ("rate", math.nan),
        ("rate", 0),
        ("warmup", 1.5),
        ("clip", -1),
        ("ema", 1),
        ("keep", 0),
        ("seed", -1),
        ("workers", -1),
        ("patience", -1),
        ("log_every", -1),
        ("weight_decay", math.inf),
    ],
)
def test_options_out_of_range_are_named(option, value):
    with pytest.raises(unn.ArgumentError, match=says("training", option)):
        fit(toy_network(), ToyTask(), replace(SHORT, **{option: value}))


@pytest.mark.parametrize("device", ["cuda:7", "tpu9", "xpu"])
def test_a_device_that_is_not_there_is_named(device):
    with pytest.raises(unn.ArgumentError, match=says("device", device)):
        fit(toy_network(), ToyTask(), replace(SHORT, device=device))


def test_a_first_evaluation_that_is_no_number_is_not_the_best():
    class Late(ToyTask):
        def __init__(self):
            super().__init__()
            self.scores = iter([math.nan, 0.5, 0.9, 0.8, 0.7])
            self.weights = []

        def evaluate(self, network):
            self.weights.append(tensors_of(network))
            return {"accuracy": next(self.scores)}

    task = Late()
    result = fit(toy_network(), task, replace(SHORT, epochs=5, patience=2))
    assert len(result.history) == 5 and same_tensors(tensors_of(result.network), task.weights[2])


def test_weights_that_are_not_finite_are_never_returned():
    class Last(ToyTask):
        def loss(self, network, batch):
            return super().loss(network, batch) + 0 * torch.sqrt(0 * network.graph.W).sum()

        def evaluate(self, network):
            return {"accuracy": 0.0}

    with pytest.raises(unn.DivergenceError, match=says("declaration.W")):
        fit(toy_network(), Last(), replace(SHORT, steps=1))


@pytest.mark.parametrize(
    "metrics",
    [{"step": 1.0}, {"loss": 1.0}, {3: 1.0}, {"accuracy": "high"}, {"accuracy": torch.zeros(2)}],
    ids=str,
)
def test_metrics_need_names_of_their_own_and_numbers(metrics):
    class Odd(ToyTask):
        def evaluate(self, network):
            return metrics

    with pytest.raises(unn.ArgumentError, match=says("Odd.evaluate", repr(next(iter(metrics))))):
        fit(toy_network(), Odd(), replace(SHORT, epochs=1))


@pytest.mark.parametrize(
    "change", [lambda loss: loss.expand(2), lambda loss: loss.detach(), lambda loss: 3.0]
)
def test_a_loss_must_be_one_number_that_depends_on_the_network(change):
    class Odd(ToyTask):
        def loss(self, network, batch):
            return change(super().loss(network, batch))

    with pytest.raises(unn.ArgumentError, match=says("Odd.loss", "one number")):
        fit(toy_network(), Odd(), replace(SHORT, epochs=1))


def test_a_network_without_parameters_to_train_is_refused():
    network = toy_network()
    for parameter in network.parameters():
        parameter.requires_grad_(False)
    for empty in (network, torch.nn.Module()):
        with pytest.raises(unn.ArgumentError, match=says("no parameter", "requires gradients")):
            fit(empty, ToyTask(), SHORT)


def test_extra_state_of_a_module_is_no_tensor_of_it():
    class Extra(torch.nn.Linear):
        def get_extra_state(self):
            return {"note": 1}

        def set_extra_state(self, state):
            pass

    assert set(tensors_of(Extra(2, 2))) == {"weight", "bias"}


@pytest.fixture
def _usual_interrupt():
    """Jobs in the background start with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_usual_interrupt")
def test_signals_close_together_are_one_request_and_a_later_one_stops_at_once(monkeypatch):
    with Interrupt(signal.SIGINT, signal.SIGTERM) as interrupt:
        assert not interrupt.requested
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        assert interrupt.requested
        monkeypatch.setattr("unn.training.interrupt.ONE_REQUEST", 0.0)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
