"""Training options, shared by all problems."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ..errors import ArgumentError
from ..ranges import check_kinds
from ..ranges import check_ranges as check_ranges


@dataclass(frozen=True)
class TrainingConfig:
    """Training options.

    Attributes:
        epochs: Number of passes over the examples.
        steps: Number of optimizer steps, instead of epochs; 0 uses the epochs. Infinite streams of examples
            need it.
        batch: Number of examples per step, over all processes and parts.
        accumulate: Number of parts in which each process computes its share of a batch, one after another, to
            save memory. Parts are weighted by their numbers of examples; a loss that is a mean over nodes
            instead changes a little with the number of parts.
        optimizer: Optimization algorithm: "adam", "adamw", "adamax" or "sgd" (with momentum 0.9).
        rate: Learning rate.
        weight_decay: Weight decay of the optimizer.
        schedule: Schedule of the learning rate: "constant", or a decay to ``floor`` over all steps ("cosine",
            "linear").
        floor: Share of the learning rate at which the decay ends.
        warmup: Share of the steps during which the learning rate is ramped up; 0 for none.
        clip: Largest norm of the gradient; 0 does not clip.
        skip: Norm of the gradient from which a step is skipped, and counted as ``skipped``; 0 skips none.
        ema: Decay of the exponential moving average of the weights, which is then evaluated and saved, with
            the present buffers; 0 for none.
        precision: Precision of arithmetic, by autocast; weights stay in float32.
        compile: Compile the loss with torch.compile.
        log_every: Number of steps between entries of the loss; 0 writes them at evaluations only.
        evaluate_every: Number of steps between evaluations; 0 evaluates after each epoch (with steps: ten
            times in all).
        checkpoint_every: Number of steps between checkpoints; 0 writes one at each evaluation.
        keep: Number of checkpoints that are kept.
        patience: Number of evaluations without improvement (NaN counts as none) after which training stops
            and the best weights are restored; 0 never stops early.
        seed: Seed of the weights and of everything random in training.
        threads: Number of CPU threads of torch; 0 leaves its default.
        workers: Number of processes that prepare batches; 0 for none.
        device: Device of the computation: "auto" takes an accelerator if there is one; else "cpu", "cuda",
            "cuda:1", ...
    """

    epochs: int = 10
    steps: int = 0
    batch: int = 64
    accumulate: int = 1
    optimizer: Literal["adam", "adamw", "adamax", "sgd"] = "adam"
    rate: float = 1e-3
    weight_decay: float = 0.0
    schedule: Literal["constant", "cosine", "linear"] = "cosine"
    floor: float = 0.0
    warmup: float = 0.05
    clip: float = 0.0
    skip: float = 0.0
    ema: float = 0.0
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    compile: bool = False
    log_every: int = 0
    evaluate_every: int = 0
    checkpoint_every: int = 0
    keep: int = 2
    patience: int = 0
    seed: int = 0
    threads: int = 0
    workers: int = 0
    device: str = "auto"

    def check(self) -> None:
        """Check the ranges.

        Raises:
            ArgumentError: names the first option that is out of range, or of another kind.
        """
        check_kinds("training", self)
        check_ranges(
            "training",
            {
                "epochs": (self.epochs, 1, 10**9),
                "steps": (self.steps, 0, 10**12),
                "batch": (self.batch, 1, 10**9),
                "accumulate": (self.accumulate, 1, 10**6),
                "rate": (self.rate, 1e-12, 1e6),
                "weight_decay": (self.weight_decay, 0, 1e6),
                "warmup": (self.warmup, 0, 1),
                "clip": (self.clip, 0, 1e12),
                "skip": (self.skip, 0, 1e12),
                "floor": (self.floor, 0, 1),
                "ema": (self.ema, 0, 1 - 1e-12),
                "log_every": (self.log_every, 0, 10**12),
                "evaluate_every": (self.evaluate_every, 0, 10**12),
                "checkpoint_every": (self.checkpoint_every, 0, 10**12),
                "keep": (self.keep, 1, 10**6),
                "patience": (self.patience, 0, 10**9),
                "seed": (self.seed, 0, 2**63 - 1),
                "threads": (self.threads, 0, 4096),
                "workers": (self.workers, 0, 4096),
            },
        )
        if self.accumulate > self.batch:
            raise ArgumentError(
                f"training: option accumulate must be at most the batch of {self.batch} examples, got "
                f"{self.accumulate}."
            )


FREE = {"log_every", "checkpoint_every", "keep", "threads", "workers", "device", "compile"}
"""Options that do not affect results, except for rounding; excluded from the checkpoint signature."""

LATER = {"floor": 0.0, "skip": 0.0}
"""Options that checkpoints of earlier versions do not name, with the values that they had."""


def option_signature(config: TrainingConfig) -> tuple[str, ...]:
    """Options that affect the results of training, one per line, so that a difference can be named."""
    return tuple(
        f"option {name}: {value}"
        for name, value in asdict(config).items()
        if name not in FREE and LATER.get(name, ...) != value
    )


def problem_signature(config: Mapping[str, Any], prefix: str = "") -> tuple[str, ...]:
    """Options of a problem without those of training, one per line; nested options have dotted names.

    Args:
        config: the resolved configuration of a run, as JSON; ``training`` is covered by ``option_signature``.
        prefix: prefix of the names.
    """
    lines: list[str] = []
    for name, value in config.items():
        if isinstance(value, Mapping):
            lines += [] if name == "training" else problem_signature(value, f"{prefix}{name}.")
        else:
            lines.append(f"option {prefix}{name}: {value}")
    return tuple(lines)
