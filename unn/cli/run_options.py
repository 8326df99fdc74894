"""The configuration of a run: the options of its problem, of its engine, and of training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from ..engine import engine_names, load_engine
from ..errors import UnnError, unknown
from ..training.options import TrainingConfig

if TYPE_CHECKING:
    from .declared import DeclaredProblem

_TAKEN = frozenset(
    {option.name for option in fields(TrainingConfig)}
    | {"engine", "model", "training", "config", "folder", "json", "quiet"}
)
"""Names of options of training and of commands."""

_OF_RUNS = ("engine", "model", "training")
"""Options that a run has besides those of its problem."""

_LATER_OPTIONS: dict[str, dict[str, Any]] = {
    "DescentOptions": {"rounds": "fixed", "gradient_rounds": 0, "contraction": 0.0, "round_losses": "last"},
    "SolverOptions": {"decimate_every": 0, "breadth": 1},
    "RecurrentOptions": {"labelled_share": 1.0, "position_deviation": 0.0},
    "RegressorOptions": {"coordinates": "linear", "dropout": 0.0},
    "VAEACOptions": {"coordinates": "linear"},
    "DenoiserOptions": {
        "preconditioning": "scalar",
        "coordinates": "linear",
        "dropout": 0.0,
        "noise_mean": -0.5,
        "noise_deviation": 1.6,
        "lowest_noise": 0.002,
        "highest_noise": 80.0,
    },
}
"""Options of engines, by their class, that runs of earlier versions do not have, with values that change
nothing."""


@dataclass(frozen=True)
class Defaults:
    """Measured defaults of a problem for one engine.

    Attributes:
        options: options of the engine.
        training: options of training.
        problem: options of the problem whose defaults differ with this engine, by name.
    """

    options: Any
    training: TrainingConfig = TrainingConfig(
        steps=2000, evaluate_every=2000, batch=64, rate=1e-3, clip=1.0, ema=0.99
    )
    problem: Mapping[str, Any] = field(default_factory=dict)


@cache
def run_config(problem: type[DeclaredProblem], engine: str) -> type:
    """The configuration of a run: the options of a problem, its engine's as ``model``, and ``training``.

    Raises:
        UnnError: if the engine is not installed, or an option occurs twice.
    """
    options = load_engine(engine).options
    defaults = problem.defaults.get(engine) or borrowed_defaults(problem, options)
    own = {option.name for option in fields(problem.config)}
    for option in fields(options):
        if option.name in _TAKEN:
            raise UnnError(
                f"engine {engine!r}: the option {option.name!r} is one of training or of a command; give it "
                "another name."
            )
        if option.name in own:
            raise UnnError(
                f"problem {problem.name!r} and engine {engine!r} both have an option {option.name!r}; rename "
                "one."
            )
    for option_name in defaults.problem:
        if option_name not in own:
            raise UnnError(
                f"problem {problem.name!r}: its defaults for engine {engine!r} have an "
                f"{unknown('option', option_name, own)}"
            )
    changed = [
        (option.name, option.type, field(default=defaults.problem[option.name]))
        for option in fields(problem.config)
        if option.name in defaults.problem
    ]
    reserved = [option.name for option in fields(problem.config) if option.name in _OF_RUNS]
    if reserved:
        raise UnnError(
            f"problem {problem.name!r}: the option {reserved[0]!r} of {problem.config.__name__} is one of "
            "every run; give it another name."
        )
    made = make_dataclass(
        problem.config.__name__,
        [
            *changed,
            ("engine", str, field(default=engine)),
            ("model", options, field(default=defaults.options)),
            ("training", TrainingConfig, field(default=defaults.training)),
        ],
        bases=(problem.config,),
        frozen=True,
    )
    made.__module__ = problem.config.__module__
    made.__doc__ = (
        f"{(problem.config.__doc__ or '').rstrip()}\n"
        f"        engine: Engine of the run; {', '.join(engine_names())}.\n"
        f"        model: Options of the engine.\n"
        f"        training: Options of training.\n"
    )
    return made


def later_options(engine: str) -> dict[str, Any]:
    """Options of an engine that runs of earlier versions do not have; none if it is not installed."""
    try:
        return _LATER_OPTIONS.get(load_engine(engine).options.__name__, {})
    except UnnError:
        return {}


def borrowed_defaults(problem: type[DeclaredProblem], options: type) -> Defaults:
    """Defaults of an engine without measured ones: the training of the default engine of the problem, and the
    engine's own options, except for those that it shares by inheritance with that engine."""
    first = next(iter(problem.defaults.values()))
    bases = (base for base in type(first.options).__mro__ if issubclass(options, base))
    common = next(bases)
    shared = [option.name for option in fields(common)] if is_dataclass(common) else []
    return Defaults(options(**{name: getattr(first.options, name) for name in shared}), first.training)
