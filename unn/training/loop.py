"""The training loop."""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..engine import CanLearn
from ..errors import ArgumentError, DataError, DivergenceError
from ..ops.reproducible import reproducible
from ..ops.seeds import seed_of
from ..runs.checkpoint import Checkpoint, newest_checkpoint
from ..runs.signature import network_signature
from ..runs.tree import first_not_finite
from ..runs.weights import named_tensors
from .batches import BatchPart, Examples, load_parts, steps_in_epoch
from .files import RunFiles
from .interrupt import Interrupt
from .options import TrainingConfig, option_signature
from .processes import Processes, several_processes
from .state import TrainingState
from .task import Task

RESERVED = ("step", "epoch", "loss", "rate", "seconds")
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
Entry = dict[str, Any]


@dataclass
class Fit:
    """The result of training.

    Attributes:
        network: trained network, with averaged weights if ``ema`` is set and the best weights if
            ``patience`` is set.
        history: entries of metrics, in order.
        step: number of steps taken.
        interrupted: whether Ctrl-C or SIGTERM stopped the training.
        begun: step from which this call continued; equals ``step`` if the training had already finished.
        stopped_early: reason for stopping early; empty if training did not stop early.
        restored: which weights were restored after the last step, with ``patience``; empty for the last ones.
    """

    network: nn.Module
    history: list[Entry] = field(default_factory=list)
    step: int = 0
    interrupted: bool = False
    begun: int = 0
    stopped_early: str = ""
    restored: str = ""


def fit(
    network: nn.Module,
    task: Task,
    config: TrainingConfig,
    folder: Path | None = None,
    progress: bool = False,
    report: Callable[[Entry], None] | None = None,
    processes: Processes | None = None,
    warn: Callable[[str], None] | None = None,
    problem_options: Sequence[str] = (),
    earlier: Sequence[TrainingConfig] = (),
) -> Fit:
    """Train a network; on the CPU the result depends only on its initial weights, the task and the
    configuration.

    A stopped run resumes from its newest checkpoint and ends with the same numbers as an uninterrupted run.
    Ctrl-C, and with a folder SIGTERM, stop it after the current step.

    Args:
        network: network with initial weights.
        task: examples, loss and metrics.
        config: training options.
        folder: run folder, locked by the caller; None writes no files.
        progress: whether to show a progress bar.
        report: callback that receives each entry of metrics.
        processes: the training processes; those that ``torchrun`` started by default.
        warn: callback for problems that do not end the training, such as a checkpoint on a full
            disk; prints to standard error by default.
        problem_options: further options that must match those of a checkpoint, from ``problem_signature``.
        earlier: configurations of the run before its extensions, different in ``epochs`` and ``steps`` alone.

    Raises:
        DivergenceError: if the loss or the weights become NaN or infinite.
        DataError: if the folder's checkpoint belongs to another graph or was trained with other options, or
            the last checkpoint or the weights cannot be written.
    """
    config.check()
    folder = None if folder is None else Path(folder)
    with ExitStack() as stack:
        stack.enter_context(reproducible())
        group = processes or stack.enter_context(several_processes(config.device))
        if config.threads:
            stack.enter_context(_threads(config.threads))
        # restores the random state of the caller
        stack.enter_context(torch.random.fork_rng([group.device] if group.device.type == "cuda" else []))
        files = stack.enter_context(RunFiles(folder if group.main else None, warn or _to_stderr))
        # without a folder nothing is saved, so that SIGTERM ends the program as it would anywhere
        signals = (signal.SIGINT,) if folder is None else (signal.SIGINT, signal.SIGTERM)
        interrupt = stack.enter_context(Interrupt(*signals))
        if isinstance(network, CanLearn) and next(network.parameters(), None) is None:
            return _without_steps(network, task, group, files, report)
        training = _Training(network, task, config, group, files, folder, problem_options, earlier)
        return training.run(progress, report, interrupt)


def _without_steps(
    network: nn.Module,
    task: Task,
    group: Processes,
    files: RunFiles,
    report: Callable[[Entry], None] | None,
) -> Fit:
    """Evaluate and save a network without parameters, such as a table of examples: there are no steps."""
    network = network.to(group.device).eval()
    history = files.begin(0, 0, over=True)
    if not history and group.main:
        with torch.no_grad():
            entry: Entry = {"step": 0, **checked_metrics(task, network), "seconds": 0.0}
        history.append(entry)
        files.append(entry)
        if report is not None:
            report(entry)
    files.finish(network)
    return Fit(network, history, 0)


def total_steps(config: TrainingConfig, examples: Examples) -> int:
    """Total number of training steps.

    Raises:
        ArgumentError: for an infinite stream without ``steps`` in the configuration.
    """
    total = config.steps or config.epochs * steps_in_epoch(len(examples), config.batch)
    if not total:
        raise ArgumentError("training: the examples are a stream without an end; set the number of --steps.")
    return total


class _Training:
    """State and steps of one call of ``fit``."""

    def __init__(
        self,
        network: nn.Module,
        task: Task,
        config: TrainingConfig,
        group: Processes,
        files: RunFiles,
        folder: Path | None,
        problem_options: Sequence[str],
        earlier: Sequence[TrainingConfig],
    ) -> None:
        self.task, self.config, self.group, self.files = task, config, group, files
        self.examples = task.examples()
        self.epoch = steps_in_epoch(len(self.examples), config.batch)
        self.total = total_steps(config, self.examples)
        if not any(p.requires_grad for p in network.parameters()):
            raise ArgumentError(
                "training: no parameter of the network requires gradients, so nothing can be trained."
            )
        self.network = network.to(group.device)
        # constants, such as masks of attention
        self.infinite = {
            name
            for name, x in self.network.named_buffers()
            if x.is_floating_point() and not bool(x.isfinite().all())
        }
        self.state = TrainingState(self.network, config, self.total)
        self.signature, *others = signatures(self.network, (config, *earlier), problem_options)
        if folder is not None:
            checkpoint, warnings = newest_checkpoint(folder, self.signature, others)
            for text in warnings:
                files.warn(text)
            if checkpoint is not None:
                self.state.load_state_dict(
                    checkpoint.state, f"{folder}, checkpoint of step {checkpoint.step}"
                )
        progress = self.state.progress
        self.begun = progress.step
        self.history = files.begin(
            progress.step, progress.entries, over=progress.finished or progress.step >= self.total
        )
        self.step_module = _wrap(_Loss(self.network, task), config, group)

    def run(self, show: bool, report: Callable[[Entry], None] | None, interrupt: Interrupt) -> Fit:
        from tqdm import tqdm

        progress, group, config = self.state.progress, self.group, self.config
        parts = range(group.rank * config.accumulate, (group.rank + 1) * config.accumulate)
        batches = load_parts(
            self.examples,
            progress.step,
            self.total,
            config.batch,
            config.seed,
            parts,
            group.count * config.accumulate,
            config.workers,
            group.device.type == "cuda",
        )
        stopped = False
        with tqdm(
            total=self.total,
            initial=progress.step,
            desc="training",
            unit="step",
            disable=not (show and group.main),
            leave=False,
        ) as bar:
            while progress.step < self.total and not progress.finished and not stopped:
                start = time.perf_counter()
                stopped = self.take_step(next(batches), interrupt.requested)
                progress.seconds += time.perf_counter() - start
                bar.update()
                entry = self.entry()
                if entry:
                    progress.entries += 1
                    self.history.append(entry)
                    self.files.append(entry)
                    bar.set_postfix(
                        {
                            key: f"{value:.4g}"
                            for key, value in entry.items()
                            if key not in ("step", "epoch", "seconds", "rate")
                        }
                    )
                    if report is not None and group.main:
                        report(entry)
                if stopped or self.checkpoint_is_due():
                    self.save()
        finished = progress.finished or progress.step >= self.total
        if not finished:
            self.files.require_saved()
            return Fit(
                self.state.best_network, self.history, progress.step, interrupted=True, begun=self.begun
            )
        self.require_finite()
        if config.patience and progress.best is not None:
            self.state.restore_best()
        best = self.state.best_network.eval()
        self.files.finish(best)
        return Fit(
            best,
            self.history,
            progress.step,
            begun=self.begun,
            stopped_early=self.early_stop_reason(),
            restored=self.restored_weights(),
        )

    def restored_weights(self) -> str:
        """Describe the weights that were restored although training did not stop early."""
        progress = self.state.progress
        is_restored = self.config.patience and not progress.finished and progress.best is not None
        if not is_restored or progress.best_step == progress.step:
            return ""
        return (
            f"the weights are those of step {progress.best_step}, where {self.task.monitor} was "
            f"{progress.best:.4g}"
        )

    def early_stop_reason(self) -> str:
        """Describe why training stopped early and which weights were kept; empty if it did not stop early."""
        progress, monitor = self.state.progress, self.task.monitor
        if not progress.finished:
            return ""
        start = f"stopped early after step {progress.step} of {self.total}: {monitor}"
        if progress.best is None:
            return (
                f"{start} was NaN in all of {progress.waited} evaluations; the weights are those of the last "
                "step"
            )
        last = next((entry[monitor] for entry in reversed(self.history) if monitor in entry), None)
        now = " and is NaN now" if last is not None and math.isnan(last) else ""
        return (
            f"{start} has not improved in {progress.waited} evaluations{now}; "
            f"the weights are those of step {progress.best_step}, where it was {progress.best:.4g}"
        )

    def take_step(self, parts: list[BatchPart], stop: bool) -> bool:
        """Accumulate gradients over all parts and processes and update the weights; return whether
        any process received a request to stop."""
        config, state, group = self.config, self.state, self.group
        progress = state.progress
        self.network.train()
        seed_generators(group.device, seed_of(config.seed, 3, progress.step, group.rank))
        weights = [self.task.weight(part.batch, part.count) if part.count else 0.0 for part in parts]
        whole, stops = group.sum(torch.tensor([sum(weights), float(stop)], dtype=torch.float64)).tolist()
        if not whole > 0:
            raise DataError(
                f"training: the batch of step {progress.step + 1} has no items: Task.weight gave {weights}."
            )
        losses = []
        for number, (part, weight) in enumerate(zip(parts, weights, strict=True)):
            last = number == len(parts) - 1
            with nullcontext() if last or group.count == 1 else self.step_module.no_sync():  # type: ignore[operator]
                with torch.autocast(
                    group.device.type, _DTYPES.get(config.precision), enabled=config.precision in _DTYPES
                ):
                    loss = self.step_module(to_device(part.batch, group.device))
                if not isinstance(loss, Tensor) or loss.ndim or not loss.requires_grad:
                    problem = (
                        f"shape {tuple(loss.shape)}"
                        if isinstance(loss, Tensor) and loss.ndim
                        else "a value without gradient"
                    )
                    raise ArgumentError(
                        f"{type(self.task).__name__}.loss must be one number that depends on the network, "
                        f"got {problem}."
                    )
                # gradients are averaged over processes, so each process multiplies by their number
                share = weight * group.count / whole
                state.scaler.scale(loss if share == 1 else loss * share).backward()
                losses.append(loss.detach())
        # float64 on the CPU, since some accelerators lack it
        total = float(
            group.sum((torch.stack(losses).cpu().double() * torch.tensor(weights, dtype=torch.float64)).sum())
        )
        if not math.isfinite(total):
            raise DivergenceError(
                f"training: the loss of step {progress.step + 1} is {total}; {self.files.last_good()}. Try a "
                "lower --rate, --clip 1, fewer iterations, or bound the variables (unn show says which "
                "energies have no minimum)."
            )
        progress.loss += total
        progress.items += whole
        progress.monitored_loss += total
        progress.monitored_items += whole
        if self.is_taken():
            state.scaler.step(state.optimizer)
        state.scaler.update()
        state.optimizer.zero_grad(set_to_none=True)
        state.advance_schedule()
        if state.average is not None:
            state.average.update_parameters(self.network)
        progress.step += 1
        return bool(stops > 0)

    def is_taken(self) -> bool:
        """Clip the gradient, and whether the step is taken; one that is skipped is counted."""
        config, state = self.config, self.state
        if not config.clip and not config.skip:
            return True
        state.scaler.unscale_(state.optimizer)
        norm = nn.utils.clip_grad_norm_(self.network.parameters(), config.clip or math.inf)
        if config.skip and not float(norm) <= config.skip:
            state.progress.skipped += 1
            return False
        return True

    def entry(self) -> Entry | None:
        """Return the entry of metrics after a step, or None if none is due."""
        config, progress = self.config, self.state.progress
        evaluate = self.evaluation_is_due()
        if not evaluate and not (config.log_every and progress.step % config.log_every == 0):
            return None
        loss = progress.loss / progress.items
        progress.loss = progress.items = 0.0
        entry: Entry = {
            "step": progress.step,
            "loss": loss,
            "rate": float(self.state.optimizer.param_groups[0]["lr"]),
        }
        if self.epoch:
            entry["epoch"] = progress.step / self.epoch
        if self.config.skip:
            entry["skipped"] = float(progress.skipped)
        if evaluate:
            # the mean since the last evaluation, whatever was logged in between
            entry |= self.evaluate(progress.monitored_loss / progress.monitored_items)
            progress.monitored_loss = progress.monitored_items = 0.0
        return entry | {"seconds": progress.seconds}

    def evaluation_is_due(self) -> bool:
        """Whether to evaluate: at the configured interval and after the last step."""
        every = self.config.evaluate_every or (
            math.ceil(self.total / 10) if self.config.steps or not self.epoch else self.epoch
        )
        return self.state.progress.step % every == 0 or self.state.progress.step == self.total

    def checkpoint_is_due(self) -> bool:
        """Whether to write a checkpoint: at the configured interval and after the last step."""
        progress, every = self.state.progress, self.config.checkpoint_every
        if progress.finished or progress.step == self.total:
            return True
        return progress.step % every == 0 if every else self.evaluation_is_due()

    def evaluate(self, loss: float) -> dict[str, float]:
        """Evaluate the network in the main process, and update the best value and early stopping."""
        progress = self.state.progress
        metrics: dict[str, float] | None = None
        if self.group.main:
            network = self.state.best_network
            network.eval()
            seed_generators(self.group.device, seed_of(self.config.seed, 4, progress.step))
            with torch.no_grad():
                metrics = checked_metrics(self.task, network)
        metrics = dict(self.group.from_main(metrics))
        monitor = self.task.monitor
        if monitor != "loss" and monitor not in metrics:
            raise ArgumentError(
                f"{type(self.task).__name__}.monitor is {monitor!r}, but evaluate() gave "
                f"{', '.join(metrics) or 'nothing'}."
            )
        value = metrics.get(monitor, loss)
        if progress.best is None:
            better = not math.isnan(value)
        else:
            # a comparison with NaN is never true, so that NaN counts as no improvement
            better = value > progress.best if self.task.larger_is_better else value < progress.best
        if better:
            progress.best, progress.best_step, progress.waited = value, progress.step, 0
            if self.config.patience:
                self.state.store_best()
        else:
            progress.waited += 1
            progress.finished = bool(self.config.patience) and progress.waited >= self.config.patience
        return metrics

    def save(self) -> None:
        """Write a checkpoint, if the weights are finite."""
        if not self.group.main or self.files.folder is None:
            return
        self.require_finite()
        self.files.save(
            Checkpoint(self.state.progress.step, self.signature, self.state.state_dict()), self.config.keep
        )

    def require_finite(self) -> None:
        """Require finite weights.

        Raises:
            DivergenceError: names the first tensor that is not finite.
        """
        tensors = named_tensors(self.network)
        bad = first_not_finite({name: x for name, x in tensors.items() if name not in self.infinite})
        if bad is not None:
            raise DivergenceError(
                f"training: {bad!r} has NaN or infinite entries after step {self.state.progress.step}; "
                f"{self.files.last_good()}. Try a lower --rate or --clip 1."
            )


def checked_metrics(task: Task, network: nn.Module) -> dict[str, float]:
    """Evaluate the task and check its metrics.

    Raises:
        ArgumentError: if they are no mapping, a metric is not a number, or its name is reserved.
    """
    metrics: dict[str, float] = {}
    evaluated = task.evaluate(network)
    if not isinstance(evaluated, Mapping):
        raise ArgumentError(
            f"{type(task).__name__}.evaluate must return metrics by name, got {type(evaluated).__name__}."
        )
    for name, value in evaluated.items():
        if not isinstance(name, str) or name in RESERVED:
            raise ArgumentError(
                f"{type(task).__name__}.evaluate: a metric cannot be called {name!r}; "
                f"{', '.join(RESERVED)} are reserved."
            )
        try:
            metrics[name] = float(value)
        except (TypeError, ValueError, RuntimeError):
            raise ArgumentError(
                f"{type(task).__name__}.evaluate: metric {name!r} must be one number, got {value!r}."
            ) from None
    return metrics


def signatures(
    network: nn.Module, configs: Sequence[TrainingConfig], problem_options: Sequence[str]
) -> list[tuple[str, ...]]:
    """Checkpoint signature (graphs, sizes, options) of a network for each configuration."""
    shared = network_signature(network)
    return [(*shared, *option_signature(config), *problem_options) for config in configs]


class _Loss(nn.Module):
    """The loss as a module, so that DistributedDataParallel, autocast and compilation can wrap its call."""

    def __init__(self, network: nn.Module, task: Task) -> None:
        super().__init__()
        self.network = network
        self.task = task

    def forward(self, batch: Any) -> Tensor:
        return self.task.loss(self.network, batch)


def _wrap(loss: nn.Module, config: TrainingConfig, group: Processes) -> nn.Module:
    if config.compile:
        loss = torch.compile(loss)  # type: ignore[assignment]
    if group.count == 1:
        return loss
    # a loss need not reach every parameter in every step
    return DistributedDataParallel(
        loss, device_ids=[group.device] if group.device.type == "cuda" else None, find_unused_parameters=True
    )


def to_device(batch: Any, device: torch.device) -> Any:
    """Move a batch to a device: tuples, lists, dictionaries and objects with a method ``to``."""
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(part, device) for part in batch))
    if isinstance(batch, (tuple, list)):
        return type(batch)(to_device(part, device) for part in batch)
    if isinstance(batch, dict):
        return {name: to_device(part, device) for name, part in batch.items()}
    return batch.to(device, non_blocking=True) if hasattr(batch, "to") else batch


def seed_generators(device: torch.device, seed: int) -> None:
    """Seed torch's global generators of the CPU and of one device; ``torch.manual_seed`` takes
    longer than a small step."""
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _to_stderr(text: str) -> None:
    print(f"unn: {text}", file=sys.stderr, flush=True)
