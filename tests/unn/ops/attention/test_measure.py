"""The kernel of attention that is chosen: the fastest on the machine, measured once, and remembered so that
bits are the same in every process."""

import copy
import itertools
import json
import os
import pickle
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.helpers import says
from support.structures import sudoku
from support.toy import same_tensors, tensors_of
from torch.utils.checkpoint import checkpoint

import unn
from unn.diffusion import Diffusion
from unn.networks import Denoiser
from unn.ops.attention import AttentionMask, attention, choose_kernel, measure
from unn.ops.attention.measure import CAPACITY, HOPELESS, MARGIN, WORTHWHILE, candidates_of, fastest
from unn.ops.attention.remember import remember
from unn.ops.reproducible import reproducible
from unn.training import Task, TensorExamples, TrainingConfig, fit

CPU = torch.device("cpu")
NAMES = ("dense", "relational", "sparse")


class Clock:
    """Time that passes by calls alone."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def run(self, seconds):
        def call():
            self.now += seconds

        return call


def chosen(seconds, clock=None):
    """What ``fastest`` chooses among calls that take these seconds."""
    clock = clock or Clock()
    with patch.object(measure, "time", SimpleNamespace(thread_time=clock, perf_counter=clock)):
        return fastest({name: clock.run(t) for name, t in seconds.items()})


def large(batch=4, dtype=torch.float32, gradients=True, seed=0):
    """A mask that is worth measuring, and inputs of 2 heads of width 4."""
    mask = AttentionMask(sudoku(4, 4).adjacency())
    generator = torch.Generator().manual_seed(seed)
    inputs = [torch.randn(batch, 2, mask.count, 4, generator=generator).to(dtype) for _ in range(3)]
    return mask, [x.requires_grad_(gradients) for x in inputs]


@pytest.fixture
def trials(monkeypatch, tmp_path):
    """The sizes that were measured; the clock gives another answer each time."""
    sizes, answers = [], itertools.cycle(NAMES)
    monkeypatch.setenv("UNN_CACHE", str(tmp_path / "cache"))

    def answer(runs, size, *inputs):
        sizes.append(size)
        return next(name for name in answers if name in runs)

    monkeypatch.setattr("unn.ops.attention.kernels.fastest_kernel", answer)
    return sizes


# -- a trial -------------------------------------------------------------------------------------------------


@given(seconds=st.dictionaries(st.sampled_from(NAMES), st.floats(1e-4, 1.0), min_size=1))
def test_the_choice_is_the_fastest_within_the_margin_and_the_preferred_one_if_it_is(seconds):
    preferred, least = next(iter(seconds)), min(seconds.values())
    name = chosen(seconds)
    assert seconds[name] <= 1.001 * MARGIN * least
    if seconds[preferred] <= 0.999 * MARGIN * least:
        assert name == preferred
    elif seconds[preferred] > 1.001 * MARGIN * least:
        assert seconds[name] <= 1.001 * least


def test_slow_calls_make_a_trial_short():
    clock = Clock()
    assert chosen({"dense": 10.0, "sparse": 2.0, "relational": 2.1}, clock) == "sparse"
    # a call to prepare and one that counts of each, and another of those that are not far behind
    assert clock.now == pytest.approx(2 * (10 + 2 + 2.1) + 2 + 2.1)


def test_a_call_that_fails_in_the_trial_is_not_chosen():
    def fail():
        raise RuntimeError("not enough memory")

    assert fastest({"dense": fail, "sparse": lambda: None}) == "sparse"
    assert fastest({"dense": lambda: None, "sparse": fail}) == "dense"
    assert fastest({"dense": fail}) == "dense"


@given(st.dictionaries(st.sampled_from(NAMES), st.floats(1e-5, 1.0), min_size=1))
def test_nothing_is_tried_that_the_model_of_costs_makes_hopeless_or_that_does_not_pay(estimates):
    names, least = candidates_of(estimates), min(estimates.values())
    assert estimates[names[0]] == least
    expected = (
        {name for name, cost in estimates.items() if cost <= HOPELESS * least}
        if least >= WORTHWHILE
        else {names[0]}
    )
    assert set(names) == expected


# -- measurements are cached ---------------------------------------------------------------------------------


def test_each_size_is_measured_once(trials):
    mask, inputs = large()
    for _ in range(3):
        first, second = (attention(*inputs, mask) for _ in range(2))
        assert torch.equal(first, second)
    assert len(trials) == 1
    other = [
        [x.detach() for x in inputs],
        [x.double() for x in inputs],
        [x.repeat(3, 1, 1, 1) for x in inputs],
        [torch.cat([x, x], 3) for x in inputs],
        [inputs[0], inputs[1], torch.cat([inputs[2], inputs[2]], 3)],
    ]
    for number, given_now in enumerate(other, 2):
        for _ in range(2):
            attention(*given_now, mask)
        assert len(trials) == len(set(trials)) == number


def test_batches_of_similar_sizes_share_a_measurement(trials):
    mask, _ = large()
    for batch in range(5, 9):
        attention(*large(batch)[1], mask)
    assert len(trials) == 1


def test_at_most_capacity_sizes_are_cached(trials):
    mask, inputs = large(8)
    with patch.object(torch, "get_num_threads", iter(range(1, 1000)).__next__):
        for _ in range(CAPACITY + 10):
            attention(*inputs, mask)
    assert len(trials) == CAPACITY + 10 and len(mask.measured) == CAPACITY


def test_copies_share_what_was_measured_and_pickles_do_not_carry_it_to_other_machines(trials, elsewhere):
    mask, inputs = large()
    expected = attention(*inputs, mask)
    assert torch.equal(attention(*inputs, copy.deepcopy(mask)), expected) and len(trials) == 1
    elsewhere()
    attention(*inputs, pickle.loads(pickle.dumps(mask)))
    assert len(trials) == 2


# -- choices are remembered on the machine -------------------------------------------------------------------


@pytest.fixture
def elsewhere(monkeypatch, tmp_path):
    """From its call on, nothing that was remembered counts."""
    return lambda: monkeypatch.setenv("UNN_CACHE", str(tmp_path / "another cache"))


def remembered_files(tmp_path):
    return sorted((tmp_path / "cache" / "kernels").iterdir())


def test_another_process_follows_the_choice_that_is_remembered(trials, tmp_path):
    _, inputs = large()
    results = [attention(*inputs, large()[0]) for _ in range(4)]
    assert len(trials) == 1 and all(torch.equal(x, results[0]) for x in results)
    (file,) = remembered_files(tmp_path)
    content = json.loads(file.read_text())
    assert content["kernel"] in NAMES and content["machine"]["torch"] == torch.__version__


def test_what_is_measured_does_not_depend_on_which_of_similar_batches_comes_first(
    trials, tmp_path, monkeypatch
):
    problems = []
    for first in range(17, 33):
        cache = tmp_path / str(first)
        monkeypatch.setenv("UNN_CACHE", str(cache))
        mask, inputs = large(first)
        attention(*inputs, mask)
        (file,) = (cache / "kernels").iterdir()
        problems.append({**json.loads(file.read_text()), "kernel": ""})
    assert len(trials) == 16 and all(problem == problems[0] for problem in problems)


def test_graphs_and_sizes_have_a_choice_each(trials, tmp_path):
    for grid, batch in ((4, 4), (4, 16), (5, 4)):
        mask = AttentionMask(sudoku(grid, grid).adjacency())
        for _ in range(2):
            attention(*torch.randn(3, batch, 2, mask.count, 4), mask)
    assert len(trials) == len(remembered_files(tmp_path)) == 3


@pytest.mark.parametrize("content", ["", "{", "[]", '{"kernel": 3}', '{"kernel": "fastest"}', "\0\xff"])
def test_a_damaged_file_is_measured_anew_and_replaced(content, trials, tmp_path):
    _, inputs = large()
    attention(*inputs, large()[0])
    (file,) = remembered_files(tmp_path)
    file.write_text(content)
    attention(*inputs, large()[0])
    assert len(trials) == 2 and json.loads(file.read_text())["kernel"] in NAMES
    attention(*inputs, large()[0])
    assert len(trials) == 2


def test_of_processes_that_measure_at_once_the_first_decides(tmp_path, monkeypatch):
    monkeypatch.setenv("UNN_CACHE", str(tmp_path))

    def slow():
        assert remember({"size": 1}, NAMES, lambda: "sparse") == "sparse"
        return "dense"

    assert remember({"size": 1}, NAMES, slow) == "sparse"
    assert len(list((tmp_path / "kernels").iterdir())) == 1


def test_on_a_file_system_without_links_the_choice_is_remembered_too(tmp_path, monkeypatch):
    monkeypatch.setenv("UNN_CACHE", str(tmp_path))

    def no_links(*_):
        raise OSError("no links")

    monkeypatch.setattr(os, "link", no_links)
    assert remember({}, NAMES, lambda: "sparse") == remember({}, NAMES, lambda: "dense") == "sparse"


def test_a_trial_that_fails_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setenv("UNN_CACHE", str(tmp_path))

    def fail():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        remember({}, NAMES, fail)
    assert not list((tmp_path / "kernels").iterdir())


def test_where_nothing_can_be_written_each_process_measures(trials, monkeypatch):
    mask, inputs = large()
    monkeypatch.setenv("UNN_CACHE", os.devnull)
    for _ in range(2):
        attention(*inputs, mask)
    assert len(trials) == 1


# -- where bits have to be the same, and where nothing can be measured ---------------------------------------


def test_where_algorithms_have_to_be_deterministic_the_model_of_costs_decides(trials):
    mask, inputs = large()
    # a choice that was measured before does not count either
    attention(*inputs, mask)
    estimated = attention(*inputs, mask, "estimated")
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.equal(attention(*inputs, mask), estimated) and len(trials) == 1
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(estimated, attention(*inputs, mask, choose_kernel(mask, 8, 4, CPU)))
    attention(*large()[1], mask)
    assert len(trials) == 1


def test_where_bits_have_to_be_the_same_what_one_process_measured_does_not_count(trials, monkeypatch):
    mask, inputs = large()
    monkeypatch.setenv("UNN_CACHE", os.devnull)
    attention(*inputs, mask)
    with reproducible():
        assert torch.equal(attention(*inputs, mask), attention(*inputs, mask, "estimated"))
    assert len(trials) == 1


def test_reproducibility_ends_with_its_block_also_after_an_error(trials, monkeypatch):
    mask, inputs = large()
    monkeypatch.setenv("UNN_CACHE", os.devnull)
    with pytest.raises(KeyError), reproducible():
        raise KeyError
    attention(*inputs, mask)
    assert len(trials) == 1


def test_tiny_problems_are_not_measured(trials):
    mask = AttentionMask(sudoku(2, 2).adjacency())
    attention(*torch.randn(3, 2, 2, 16, 4), mask)
    assert not trials


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_compiled_attention_is_not_measured(trials):
    mask, inputs = large(gradients=False)
    compiled = torch.compile(lambda q, k, v: attention(q, k, v, mask), backend="eager")
    torch.testing.assert_close(compiled(*inputs), attention(*inputs, mask, "dense"), atol=1e-5, rtol=1e-5)
    assert not trials


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_under_vmap_nothing_is_measured(trials):
    mask, inputs = large(gradients=False)
    with patch("unn.ops.attention.kernels.choose_kernel", lambda *_: "dense"):
        out = torch.func.vmap(lambda q, k, v: attention(q[None], k[None], v[None], mask)[0])(*inputs)
    torch.testing.assert_close(out, attention(*inputs, mask, "dense"), atol=1e-5, rtol=1e-5)
    assert not trials


class Grids(Task):
    """A denoiser of 16 x 16 grids, large enough to be measured; evaluations sample."""

    monitor = "mean"
    larger_is_better = True

    def __init__(self, stop_after=None):
        digits = torch.randint(16, (8, 16, 16), generator=torch.Generator().manual_seed(0))
        self.grids = torch.nn.functional.one_hot(digits, 16).float()
        self.left = stop_after

    def examples(self):
        return TensorExamples(self.grids)

    def loss(self, network, batch):
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise StopError
        return network.loss({"X": batch[0]}, {})

    def evaluate(self, network):
        return {"mean": float(network.sample(count=4, steps=1, seed=0)["X"].mean())}


class StopError(Exception):
    pass


def grid_network(seed):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Diffusion(Denoiser(sudoku(4, 4), width=8, heads=2, depth=1))


@pytest.mark.parametrize("writable", [True, False])
def test_a_run_that_stops_ends_with_the_bits_of_one_that_does_not_whatever_a_clock_says(
    writable, trials, tmp_path, monkeypatch
):
    if not writable:
        monkeypatch.setenv("UNN_CACHE", os.devnull)
    config = TrainingConfig(steps=4, batch=4, checkpoint_every=2, evaluate_every=2, log_every=1)
    whole = fit(grid_network(0), Grids(), config)
    with pytest.raises(StopError):
        fit(grid_network(0), Grids(stop_after=3), config, tmp_path)
    resumed = fit(grid_network(9), Grids(), config, tmp_path)
    assert resumed.step == 4 and same_tensors(tensors_of(resumed.network), tensors_of(whole.network))
    assert [entry["loss"] for entry in resumed.history] == [entry["loss"] for entry in whole.history]
    # the first run measured, for training and for evaluations, and the others followed it
    assert len(trials) == len(set(trials)) and bool(trials) is writable


@pytest.mark.parametrize("cache", ["cache", os.devnull])
@pytest.mark.parametrize("seed", [0, [5, 3, 2, 1]])
def test_samples_of_a_seed_are_the_same_whatever_a_clock_says(trials, seed, cache, tmp_path, monkeypatch):
    monkeypatch.setenv("UNN_CACHE", os.devnull if cache == os.devnull else str(tmp_path))
    with torch.no_grad():
        samples = [grid_network(0).sample(count=4, steps=2, seed=seed)["X"] for _ in range(2)]
    assert torch.equal(*samples) and len(trials) == len(set(trials))


def test_a_block_that_requires_nothing_changes_nothing_inside_of_one_that_does(trials, monkeypatch):
    mask, inputs = large()
    monkeypatch.setenv("UNN_CACHE", os.devnull)
    with reproducible():
        with reproducible(False):
            attention(*inputs, mask)
        assert not trials
    with reproducible(False):
        attention(*inputs, mask)
    assert len(trials) == 1


# -- a trial changes nothing but the choice ------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("gradients", [False, True])
def test_a_real_trial_leaves_everything_as_it_was_and_its_choice_is_exact(dtype, gradients):
    mask, inputs = large(2, dtype, gradients)
    torch.manual_seed(0)
    state, before = torch.get_rng_state(), [x.detach().clone() for x in inputs]
    out = attention(*inputs, mask)
    assert len(mask.measured) == 1 and out.requires_grad is gradients and out.dtype == dtype
    assert torch.equal(torch.get_rng_state(), state) and all(
        torch.equal(a, b) for a, b in zip(before, inputs, strict=True)
    )
    assert all(x.grad is None for x in inputs)
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 4e-2}[dtype]
    torch.testing.assert_close(out, attention(*inputs, mask, "dense"), atol=tolerance, rtol=tolerance)


def test_a_trial_inside_of_inference_autocast_and_checkpoints_does_not_disturb_them():
    mask, inputs = large(2)
    expected = torch.autograd.grad(attention(*inputs, mask, "dense").sum(), inputs)
    with torch.inference_mode():
        assert attention(*(x.detach() for x in inputs), mask).is_inference()
    # recomputed in the backward pass: a tensor more or less than in the forward pass would be an error
    out = checkpoint(lambda q, k, v: attention(q, k, v, mask), *inputs, use_reentrant=False)
    for a, b in zip(torch.autograd.grad(out.sum(), inputs), expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)
    with torch.autocast("cpu", torch.bfloat16):
        half = attention(*inputs, mask)
    torch.testing.assert_close(half.float(), attention(*inputs, mask, "dense"), atol=4e-2, rtol=4e-2)
    assert len(mask.measured) == 3


def test_unknown_choices_are_refused_with_the_likely_one():
    mask, inputs = large(1)
    for wrong, meant in (("atuo", "auto"), ("estimate", "estimated")):
        with pytest.raises(unn.ObservationError, match=says(repr(wrong), repr(meant))):
            attention(*inputs, mask, wrong)
