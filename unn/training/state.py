"""The state of a training run, and how it is saved and restored."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from ..engine import CanLearn
from ..errors import DataError
from ..runs.weights import copy_weights, named_tensors
from .options import TrainingConfig


@dataclass
class Progress:
    """Counters of a training run.

    Attributes:
        step: number of steps taken.
        seconds: time spent in steps.
        loss: sum of the losses since the last entry of metrics, weighted by their numbers of items.
        items: number of items since the last entry of metrics.
        monitored_loss, monitored_items: the same since the last evaluation, which early stopping compares.
        best: best value of the monitored metric; None before the first evaluation.
        best_step: step of the best evaluation.
        waited: number of evaluations since the best one.
        entries: number of entries of metrics.
        finished: whether training has stopped early.
        skipped: number of steps that were skipped for the norm of their gradient.
    """

    step: int = 0
    seconds: float = 0.0
    loss: float = 0.0
    items: float = 0.0
    best: float | None = None
    best_step: int = 0
    waited: int = 0
    entries: int = 0
    finished: bool = False
    skipped: int = 0
    monitored_loss: float = 0.0
    monitored_items: float = 0.0


class TrainingState:
    """A network with its optimizer, learning-rate schedule, gradient scaler and weight average.

    Args:
        network: network to train, on its device.
        config: training options.
        total: total number of steps.
    """

    def __init__(self, network: nn.Module, config: TrainingConfig, total: int) -> None:
        self.network = network
        self.optimizer = make_optimizer(network, config)
        self.rate_factor = rate_factor(config, total)
        self.schedule = LambdaLR(self.optimizer, self.rate_factor)
        self.skips = config.skip > 0
        device = next((p.device.type for p in network.parameters()), "cpu")
        self.scaler = torch.amp.GradScaler(device, enabled=config.precision == "float16")
        # buffers are copied: indices and infinite masks have no average
        self.average = (
            AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(config.ema)) if config.ema else None
        )
        self.progress = Progress()
        self._best: dict[str, Tensor] = {}

    def advance_schedule(self) -> None:
        """Advance the learning rate, also after a step that was skipped for its gradient, or by the
        gradient scaler because of an overflow."""
        with warnings.catch_warnings():
            if self.scaler.is_enabled() or self.skips:
                warnings.filterwarnings("ignore", "Detected call of .lr_scheduler.step", UserWarning)
            self.schedule.step()

    @property
    def best_network(self) -> nn.Module:
        """The network that is evaluated and saved: the weight average, if there is one."""
        return self.network if self.average is None else self.average.module

    def store_best(self) -> None:
        """Store a copy of the weights, for early stopping."""
        self._best = {name: x.detach().clone() for name, x in named_tensors(self.best_network).items()}

    def restore_best(self) -> None:
        """Restore the weights of ``store_best``."""
        copy_weights(self._best, self.best_network, "the best weights")

    def state_dict(self) -> dict[str, Any]:
        """Return the state as nested dictionaries of tensors, numbers and strings."""
        state: dict[str, Any] = {
            "network": named_tensors(self.network),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "scaler": self.scaler.state_dict(),
            "progress": asdict(self.progress),
            "best": self._best,
        }
        if isinstance(self.network, CanLearn):
            state["model"] = self.network.training_state()
        if self.average is not None:
            state["average"] = {**named_tensors(self.average.module), "n_averaged": self.average.n_averaged}
        return state

    def load_state_dict(self, state: dict[str, Any], where: str) -> None:
        """Restore the state from the result of ``state_dict``.

        Raises:
            DataError: if the tensors do not match this network, or the state has another structure.
        """
        try:
            self._load(state, where)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{where} is corrupt ({type(error).__name__}: {error}).") from None

    def _load(self, state: dict[str, Any], where: str) -> None:
        copy_weights(state["network"], self.network, where)
        # the implementation of the optimizer step is not part of the state
        pairs = zip(state["optimizer"]["param_groups"], self.optimizer.param_groups, strict=True)
        groups = [{**saved, "fused": own.get("fused")} for saved, own in pairs]
        self.optimizer.load_state_dict({**state["optimizer"], "param_groups": groups})
        self.schedule.load_state_dict(state["schedule"])
        # an extended run continues with the learning rate of the new length, not with the saved one
        for group, base in zip(self.optimizer.param_groups, self.schedule.base_lrs, strict=True):
            group["lr"] = base * self.rate_factor(self.schedule.last_epoch)
        self.scaler.load_state_dict(state["scaler"])
        saved = state["progress"]
        # earlier versions compared the loss since the last entry
        earlier = {"monitored_loss": saved["loss"], "monitored_items": saved["items"]}
        self.progress = Progress(**{**earlier, **saved})
        if self.progress.best is not None and math.isnan(self.progress.best):
            # written by a version in which NaN could be the best value
            self.progress.best = None
        self._best = dict(state["best"])
        if isinstance(self.network, CanLearn) and state.get("model"):
            self.network.load_training_state(state["model"])
        if self.average is not None:
            average: dict[str, Tensor] = dict(state["average"])
            self.average.n_averaged.copy_(average.pop("n_averaged"))
            copy_weights(average, self.average.module, where)


def make_optimizer(network: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """Make the configured optimizer."""
    parameters = [p for p in network.parameters() if p.requires_grad]
    # fused CPU steps need moments and parameters with equal memory layouts; after resuming, only contiguous
    # ones have them
    fused = all(p.is_contiguous() for p in parameters)
    if config.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=config.rate, weight_decay=config.weight_decay, fused=fused)
    if config.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=config.rate, weight_decay=config.weight_decay, fused=fused)
    if config.optimizer == "adamax":
        return torch.optim.Adamax(parameters, lr=config.rate, weight_decay=config.weight_decay)
    return torch.optim.SGD(parameters, lr=config.rate, momentum=0.9, weight_decay=config.weight_decay)


def rate_factor(config: TrainingConfig, total: int) -> Callable[[int], float]:
    """Return the learning-rate factor as a function of the step (from 0)."""
    warm = max(1, int(config.warmup * total))

    def above_floor(share: float) -> float:
        # without a floor, the number itself, not rounded
        return config.floor + (1 - config.floor) * share if config.floor else share

    def factor(step: int) -> float:
        ramp = min(1.0, (step + 1) / warm)
        if config.schedule == "cosine":
            return ramp * above_floor(0.5 * (1 + math.cos(math.pi * min(step, total) / total)))
        if config.schedule == "linear":
            return ramp * above_floor(max(0.0, 1 - step / total))
        return ramp

    return factor
