"""The measuring tool, and the benchmarks' two ways to compute each model."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

import pytest
import torch

from problems.sudoku import grids as sudoku
from tests.benchmarks import attention, core, gpu
from tests.benchmarks.measure import (
    Case,
    Figure,
    Result,
    figure_table,
    measure,
    median_seconds,
    one_thread,
    peak_memory,
    require_equal,
    table,
)
from unn.ops.attention import AttentionMask

MEGABYTE = 2**20

MODELS: dict[str, Callable[[], core.Model]] = {
    "mlp": lambda: core.mlp(inputs=7, hidden=5, labels=3, batch=4),
    "convolution": lambda: core.convolution(size=21, channels=3, batch=2),
    "attention": lambda: core.attention(width=6, length=5, missing=2, batch=3),
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


def work(seconds: float) -> None:
    """Keep the processor busy."""
    start = time.process_time()
    while time.process_time() < start + seconds:
        pass


def case(
    limit: float | None = None, ours: Callable[[], object] = int, other: Callable[[], object] = int
) -> Case:
    return Case("a case", ours, other, limit, "")


def result(ratio: float, limit: float | None, other_bytes: int = 4) -> Result:
    return Result(
        case(limit),
        ours_ms=ratio,
        other_ms=1.0,
        ratio=ratio,
        spread=(ratio, ratio + 0.2),
        ours_bytes=3,
        other_bytes=other_bytes,
    )


# -- the benchmarked models ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_engine_and_loop_by_hand_give_equal_outputs_and_gradients(name: str) -> None:
    for one in core.cases_of(MODELS[name](), rounds=(1, 2, 3), limits={}):
        require_equal(one)


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_every_parameter(name: str) -> None:
    model = MODELS[name]()
    out, *gradients = core.forward_backward(model.ours, 2, model.parameters)()
    assert [g.shape for g in gradients] == [p.shape for p in model.parameters]
    assert not out.requires_grad
    assert all(bool(g.abs().max() > 0) for g in gradients)


def test_missing_rows_of_attention_are_inferred_and_the_others_kept() -> None:
    model = MODELS["attention"]()
    changed = (model.ours(2) - model.ours(1)).abs().amax(2) > 0
    assert changed.sum(1).tolist() == [2, 2, 2]


def test_limits_are_those_of_the_chosen_rounds_only() -> None:
    cases = core.cases_of(MODELS["mlp"](), rounds=(1, 2), limits={2: 0.6})
    assert [(c.name, c.limit) for c in cases] == [
        ("mlp forward k=1", None),
        ("mlp forward k=2", 0.6),
        ("mlp forward+backward k=1", None),
        ("mlp forward+backward k=2", 0.6),
    ]


def test_chain_has_one_factor_for_each_pair_and_one_table() -> None:
    g = core.chain(count=5, states=3)
    assert (len(g.variables), len(g.factors)) == (6, 5)
    assert [tuple(p.shape) for p in g.parameters()] == [(3, 3)]


# -- checking before measuring -------------------------------------------------------------------------------


def test_different_outputs_are_refused() -> None:
    with pytest.raises(ArithmeticError, match="a case: tensor 0 differs by 0"):
        require_equal(case(ours=lambda: torch.tensor([1.0, 2.2]), other=lambda: torch.tensor([1.0, 2.0])))


def test_nan_is_refused_and_zeros_are_equal() -> None:
    with pytest.raises(ArithmeticError):
        require_equal(case(ours=lambda: torch.tensor(math.nan), other=lambda: torch.tensor(1.0)))
    require_equal(case(ours=lambda: torch.zeros(2), other=lambda: torch.zeros(2)))


def test_missing_outputs_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        require_equal(case(ours=lambda: (torch.ones(1), torch.ones(1)), other=lambda: torch.ones(1)))


# -- time ----------------------------------------------------------------------------------------------------


def test_measure_finds_which_way_is_slower() -> None:
    measurement = measure(case(2.0, ours=lambda: work(0.02), other=lambda: work(0.002)), pairs=3, warmup=0)
    assert measurement.ratio > 2
    assert measurement.passed is False
    assert measurement.ours_ms >= 20
    assert measurement.spread[0] <= measurement.ratio <= measurement.spread[1]


def test_measure_runs_in_turns_after_warming_up() -> None:
    calls: list[str] = []

    def slow(name: str) -> Callable[[], object]:
        def call() -> None:
            calls.append(name)
            work(0.012)

        return call

    measure(case(ours=slow("ours"), other=slow("other")), pairs=2, warmup=1)
    warming, calibrating, first, second, memory = (calls[k : k + 2] for k in range(0, 10, 2))
    assert warming == calibrating == first == memory == ["ours", "other"]
    assert second == ["other", "ours"]
    assert len(calls) == 10


def test_waiting_does_not_count() -> None:
    assert median_seconds(lambda: time.sleep(0.05), samples=1, warmup=0) < 0.04


def test_measure_needs_a_pair() -> None:
    with pytest.raises(ValueError, match="at least one pair"):
        measure(case(), pairs=0)


def test_one_pair_has_no_spread() -> None:
    measurement = measure(case(), pairs=1)
    assert measurement.spread == (measurement.ratio, measurement.ratio)


def test_threads_are_restored_also_after_an_error() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    seen: list[int] = []
    try:
        measure(case(ours=lambda: seen.append(torch.get_num_threads())), pairs=1)
        with pytest.raises(RuntimeError), one_thread():
            raise RuntimeError
        assert set(seen) == {1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_median_of_seconds() -> None:
    assert 0.01 <= median_seconds(lambda: work(0.01), samples=3, warmup=0) < 1


# -- memory --------------------------------------------------------------------------------------------------


def test_memory_of_one_tensor() -> None:
    assert peak_memory(lambda: torch.empty(MEGABYTE)) == 4 * MEGABYTE


def test_memory_of_nothing() -> None:
    assert peak_memory(lambda: None) == 0


def test_memory_is_the_peak_and_not_the_sum() -> None:
    def one_after_another() -> None:
        for _ in range(5):
            torch.zeros(MEGABYTE)

    assert peak_memory(one_after_another) == 4 * MEGABYTE
    assert peak_memory(lambda: [torch.zeros(MEGABYTE) for _ in range(5)]) == 20 * MEGABYTE


def test_views_and_earlier_tensors_cost_nothing() -> None:
    x = torch.ones(4, MEGABYTE // 4)
    assert peak_memory(lambda: (x.mT, x[1:], x.expand(3, 4, -1), x.mul_(1))) == 0
    assert peak_memory(lambda: (x + 1).view(-1)[5:]) == 4 * MEGABYTE


def test_memory_kept_for_the_backward_pass_counts() -> None:
    x = torch.ones(MEGABYTE, requires_grad=True)

    def three() -> torch.Tensor:
        return x.tanh().tanh().tanh()

    with torch.no_grad():
        assert peak_memory(three) == 8 * MEGABYTE
    assert peak_memory(three) == 12 * MEGABYTE
    assert peak_memory(lambda: torch.autograd.grad(three().sum(), x)) >= 16 * MEGABYTE


def test_measure_reports_memory_of_both() -> None:
    measurement = measure(case(ours=lambda: torch.empty(100), other=lambda: torch.empty(200)), pairs=1)
    assert (measurement.ours_bytes, measurement.other_bytes, measurement.memory_ratio) == (400, 800, 0.5)


# -- tables --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "limit", "passed"), [(0.5, 0.6, True), (0.6, 0.6, True), (0.7, 0.6, False), (9.0, None, None)]
)
def test_verdict_compares_the_ratio_with_the_limit(
    ratio: float, limit: float | None, passed: bool | None
) -> None:
    assert result(ratio, limit).passed is passed
    assert Figure("f", ratio, "ms", limit).passed is passed


def test_table_of_results() -> None:
    lines = table([result(0.5, 0.6), result(0.7, 0.6), result(12.0, None, other_bytes=0)]).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0] == ["case", "ours ms", "other ms", "ratio", "limit", "memory ratio", "verdict"]
    assert cells[2] == ["a case", "0.5", "1", "0.50 ± 0.10", "0.60", "0.75", "passes"]
    assert cells[3][-1] == "fails"
    assert cells[4][3:] == ["12.00 ± 0.10", "-", "-", "-"]
    assert len({len(line) for line in lines}) == 1


def test_empty_table_has_its_header() -> None:
    assert len(table([]).splitlines()) == 2


def test_table_of_figures() -> None:
    lines = figure_table(
        [Figure("update", 12.34, "us", 30.0), Figure("build", 80.0, "ms", 50.0), Figure("free", 1.0, "s")]
    ).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0] == ["figure", "value", "limit", "verdict"]
    assert cells[2:] == [
        ["update", "12.3 us", "30.00", "passes"],
        ["build", "80 ms", "50.00", "fails"],
        ["free", "1 s", "-", "-"],
    ]


def test_the_choice_of_a_kernel_is_compared_with_the_fastest_in_several_batches() -> None:
    setting = attention.Setting(
        "small", lambda: sudoku.declare(2, 2), {}, heads=2, width=4, batch=2, choice=1.2
    )
    cases = attention.choice_cases(setting, AttentionMask(setting.graph().adjacency()))
    assert [c.name.split(":")[0] for c in cases] == [
        f"attention small, batch {batch}" for batch in (1, 2, 4, 8)
    ]
    for c in cases:
        require_equal(c, 1e-3)
    # all graphs of one size have a limit
    assert [s.choice for s in attention.settings()] == [1.2] * 5 + [None]


# -- the section of a GPU ------------------------------------------------------------------------------------


@pytest.fixture
def small_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        gpu, "MODELS", {name: (lambda device, make=make: make()) for name, make in MODELS.items()}
    )


def test_other_clocks_and_memories_can_be_used() -> None:
    times = {"ours": 3.0, "other": 2.0}
    ours, other = (lambda: "ours"), (lambda: "other")
    measurement = measure(
        case(ours=ours, other=other),
        pairs=2,
        clock=lambda run: times[str(run())],
        memory=lambda run: 8 if run is ours else 2,
    )
    assert (measurement.ratio, measurement.ours_ms, measurement.memory_ratio) == (1.5, 3000.0, 4.0)


def test_without_a_gpu_its_section_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    gpu.main(["--quick"])
    assert capsys.readouterr().out == "no GPU: its section was left out\n"


@pytest.mark.slow
@pytest.mark.usefixtures("small_models")
def test_the_section_of_a_gpu_has_a_table_for_each_way_to_run() -> None:
    parts = list(gpu.section("cpu", pairs=1, only="mlp", rounds=(1, 2), backend="eager"))
    assert [part.splitlines()[0] for part in parts] == [
        "eager, float32", "eager, bfloat16 by autocast", "compiled, float32", "compiled, bfloat16 by "
                                                                              "autocast",
    ]  # fmt: skip
    for part in parts:
        names = [line.split("|")[1].strip() for line in part.splitlines()[4:]]
        assert names == [
            "mlp forward k=1",
            "mlp forward k=2",
            "mlp forward+backward k=1",
            "mlp forward+backward k=2",
        ]


@pytest.mark.usefixtures("small_models")
def test_a_difference_between_the_two_ways_ends_the_section(monkeypatch: pytest.MonkeyPatch) -> None:
    model = MODELS["mlp"]()
    wrong = core.Model("mlp", model.parameters, lambda k: model.ours(k) + 0.1, model.other)
    monkeypatch.setitem(gpu.MODELS, "mlp", lambda device: wrong)
    with pytest.raises(ArithmeticError, match="mlp forward k=1"):
        next(iter(gpu.section("cpu", pairs=1, only="mlp", rounds=(1,))))


def test_full_precision_is_only_lent() -> None:
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    with gpu.full_precision():
        assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == ("highest", False)
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == before
