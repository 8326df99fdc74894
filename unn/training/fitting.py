"""Training in one Python call, with the loop of ``unn train``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from ..diffusion.conditional import ConditionalModel
from ..engine import CanLearn
from ..errors import ArgumentError, DataError, suggest
from ..ops.seeds import seed_of
from ..runs.weights import copy_weights, named_tensors
from .batches import Examples
from .loop import fit as run_loop
from .options import TrainingConfig
from .task import Task

if TYPE_CHECKING:
    from ..programs.plates import Plated
    from ..programs.traced import Traced

Values = Mapping[str, Tensor]
Generated = Callable[[int, torch.Generator], Values]
Observed = Literal["any"] | Sequence[str] | Callable[[int, torch.Generator], Tensor | Mapping[str, Tensor]]
Batch = tuple[dict[str, Tensor], Tensor | dict[str, Tensor] | None]
"""Values by variable, and the observation mask of the model."""
_Observer = Callable[[Values, int, torch.Generator], Any]
"""Draws the observation masks of a number of examples with given values."""

STANDARDISING = 1024
"""Number of examples from which the means and standard deviations of continuous variables are estimated."""


@dataclass(frozen=True)
class Fitted:
    """The result of ``unn.fit``.

    Attributes:
        losses: loss of each step, shape ``(steps,)``, float64.
        seconds: time spent in steps.
        interrupted: whether Ctrl-C ended the training before its last step.
    """

    losses: Tensor
    seconds: float
    interrupted: bool = False


def fit(
    model: nn.Module,
    examples: Values | Generated | Traced | Plated,
    *,
    steps: int,
    loss: Callable[[Any, dict[str, Tensor]], Tensor] | None = None,
    observed: Observed = "any",
    sizes: Mapping[str, int] | None = None,
    rate: float = 1e-3,
    batch: int = 64,
    seed: int = 0,
    schedule: Literal["constant", "cosine", "linear"] = "cosine",
    warmup: float = 0.05,
    clip: float = 1.0,
    ema: float = 0.0,
    progress: bool = False,
) -> Fitted:
    """Train a model in place, on its current device.

    This is the loop of ``unn train`` without a run folder: Adam, a learning-rate schedule, gradient
    clipping and an exponential moving average of the weights. On the CPU the result depends only on
    the initial weights, the examples and the options; the state of torch's global generator is
    restored. ``unn.training.fit`` adds evaluations, checkpoints, several processes and all other
    options.

    Args:
        model: module with a method ``loss(values, observed, **sizes)``, such as ``unn.Diffusion``;
            or any module, with the argument ``loss``. A model that is not prepared yet, such as one whose
            continuous variables are not standardised, is first prepared on examples.
        examples: tensors by variable, shape ``(examples, *axes)``, shuffled in each epoch; or a function
            ``(count, generator) -> values`` that draws new ones for each step; or a traced program.
            For one with plates each step draws their sizes anew, uniform in their ranges, unless ``sizes``
            has them.
        steps: number of optimizer steps.
        loss: loss function ``(model, values) -> scalar``, the mean over the batch, for models
            without a method ``loss``.
        observed: observation masks for the method ``loss`` of the model: "any" (a random subset of
            the nodes, its size uniform), names of variables, or a function
            ``(count, generator) -> observed`` that returns the argument ``observed`` of that method.
        sizes: sizes of the axes without a static size; those of the examples by default.
        rate: learning rate.
        batch: number of examples per step.
        seed: seed of the order of examples and of all random draws in training, not of the weights.
        schedule: learning-rate schedule: "constant", or a decay to 0 ("cosine", "linear").
        warmup: fraction of the steps during which the learning rate is ramped up.
        clip: largest norm of the gradient; 0 does not clip.
        ema: decay of the exponential moving average that replaces the weights of the model; 0 for none.
        progress: whether to show a progress bar.

    Raises:
        ArgumentError: if an option is out of range, the model has no loss, or an observed
            variable is unknown.
        DataError: if the examples have another type, or variables differ in their number of examples.
        DivergenceError: if the loss or the weights become NaN or infinite.

    Example:
        >>> import torch, unn
        >>> line = torch.nn.Linear(1, 1)
        >>> x = torch.linspace(-1, 1, 64)[:, None]
        >>> result = unn.fit(line, {"x": x, "y": 2 * x + 1}, steps=300, rate=0.05,
        ...                  loss=lambda net, v: ((net(v["x"]) - v["y"]) ** 2).mean())
        >>> round(line.weight.item(), 2), round(line.bias.item(), 2), len(result.losses)
        (2.0, 1.0, 300)
    """
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ArgumentError(f"fit: steps must be a whole number >= 1, got {steps!r}.")
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    config = TrainingConfig(
        steps=steps,
        batch=batch,
        rate=rate,
        schedule=schedule,
        warmup=warmup,
        clip=clip,
        ema=ema,
        seed=seed,
        log_every=1,
        evaluate_every=steps,
        device=str(device),
    )
    config.check()
    extents = dict(sizes or {})
    of_all_sizes = _plated(examples, extents)
    if of_all_sizes is not None:
        # each step has sizes of its own, which are those of its values
        examples, extents = of_all_sizes, {}
    source = _Source(examples, _observer(model, observed, extents) if loss is None else None)
    if isinstance(model, CanLearn) and loss is None:
        _prepare(model, source, seed, extents)
    training = model.training
    result = run_loop(model, _Loss(source, loss, extents), config, progress=progress)
    if result.network is not model:
        copy_weights(named_tensors(result.network), model, "the average of the weights")
    model.train(training)
    losses = torch.tensor([entry["loss"] for entry in result.history if "loss" in entry], dtype=torch.float64)
    return Fitted(losses, result.history[-1]["seconds"] if result.history else 0.0, result.interrupted)


def _plated(examples: object, sizes: Mapping[str, int]) -> Generated | None:
    """Draws of a program with plates at random sizes, those given excepted; None for other examples.

    Raises:
        ArgumentError: for sizes of no plate, or out of their range.
    """
    from ..programs.plates import Plated

    if not isinstance(examples, Plated):
        return None
    program = examples
    # refuses sizes before the first step
    program.at(**{name: least for name, (least, _) in program.plates.items()} | dict(sizes))

    def draw(count: int, generator: torch.Generator) -> Values:
        return program.at(**(program.random_sizes(generator) | dict(sizes))).draw(count, generator)

    return draw


class _Source(Examples):
    """Examples from tensors, a function or a program, with their observation masks."""

    def __init__(self, examples: Any, observed: _Observer | None) -> None:
        from ..programs.traced import Traced

        self.observed = observed
        self.tensors: dict[str, Tensor] | None = None
        self.draw: Generated | None = None
        if isinstance(examples, Traced):
            self.draw = examples.draw
        elif isinstance(examples, Mapping):
            self.tensors = dict(examples)
            if not self.tensors or not all(isinstance(x, Tensor) and x.ndim for x in self.tensors.values()):
                raise DataError(
                    "fit: examples need at least one variable, and a tensor with a first axis for each, "
                    f"got {examples!r}."
                )
            counts = {name: len(x) for name, x in self.tensors.items()}
            if len(set(counts.values())) > 1 or not min(counts.values()):
                raise DataError(f"fit: all variables need the same number of examples, got {counts}.")
        elif callable(examples):
            self.draw = examples
        else:
            raise DataError(
                "fit: examples are tensors by name, a function (count, generator) -> values, or a traced "
                f"program, got {type(examples).__name__}."
            )

    def __len__(self) -> int:
        return 0 if self.tensors is None else len(next(iter(self.tensors.values())))

    def values(self, indices: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        """Return one example per index."""
        if self.tensors is not None:
            return {name: x[indices.to(x.device)] for name, x in self.tensors.items()}
        assert self.draw is not None
        drawn = self.draw(len(indices), generator)
        if not isinstance(drawn, Mapping):
            raise DataError(
                "fit: the function that draws examples must return tensors by variable, "
                f"got {type(drawn).__name__}."
            )
        return dict(drawn)

    def batch(self, indices: Tensor, generator: torch.Generator) -> Batch:
        """Return values and observation masks."""
        values = self.values(indices, generator)
        return values, None if self.observed is None else self.observed(values, len(indices), generator)


class _Loss(Task):
    """Task with the loss of a model, or with a loss function."""

    def __init__(
        self, source: _Source, loss: Callable[[Any, dict[str, Tensor]], Tensor] | None, sizes: dict[str, int]
    ) -> None:
        self.source, self.function, self.sizes = source, loss, sizes

    def examples(self) -> Examples:
        return self.source

    def loss(self, network: nn.Module, batch: Batch) -> Tensor:
        values, observed = batch
        if self.function is not None:
            return self.function(network, values)
        mean: Tensor = network.loss(values, observed, **self.sizes)  # type: ignore[operator]
        return mean


def _observer(model: nn.Module, observed: Observed, sizes: dict[str, int]) -> _Observer:
    """Return a function that draws observation masks.

    Raises:
        ArgumentError: if the model has no loss or no graph, or a name is unknown.
    """
    if not callable(getattr(model, "loss", None)):
        raise ArgumentError(
            f"fit: {type(model).__name__} has no method loss(values, observed); "
            "pass loss=, a function (model, values) -> scalar."
        )
    if callable(observed):
        return lambda values, count, generator: observed(count, generator)
    if not isinstance(model, ConditionalModel):
        raise ArgumentError(
            f"fit: the observable nodes of {type(model).__name__} are unknown; "
            "pass observed=, a function (count, generator) -> observed."
        )
    frames = model.frames
    if observed == "any":

        def any_nodes(values: Values, count: int, generator: torch.Generator) -> Tensor:
            nodes = frames.of(values, sizes).nodes
            rank = torch.rand(count, nodes, generator=generator).argsort(1).argsort(1)
            return rank < torch.randint(nodes, (count, 1), generator=generator)

        return any_nodes
    names = [observed] if isinstance(observed, str) else list(observed)
    for name in names:
        if name not in frames.kinds:
            raise ArgumentError(
                f"fit: observed names {name!r}, which is not a variable of the "
                f"graph.{suggest(name, frames.kinds)}"
            )

    def named_nodes(values: Values, count: int, generator: torch.Generator) -> Tensor:
        frame = frames.of(values, sizes)
        nodes = torch.zeros(1, frame.nodes, dtype=torch.bool)
        for name in names:
            nodes[:, frame.slots[name].nodes] = True
        return nodes.expand(count, -1)

    return named_nodes


def _prepare(model: CanLearn, source: _Source, seed: int, sizes: dict[str, int]) -> None:
    """Prepare a model on examples, unless it is prepared already; one without parameters learns so."""
    assert isinstance(model, nn.Module)
    if model.is_prepared() and next(model.parameters(), None) is not None:
        return
    most = max(STANDARDISING, model.prepared_examples)
    count = min(most, len(source) or most)
    model.prepare(
        source.values(torch.arange(count), torch.Generator().manual_seed(seed_of(seed, 7))), **sizes
    )
