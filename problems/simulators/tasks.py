"""The tasks as programs: those of Simformer (Gloeckler et al., 2024) and of the benchmark of Lueckmann et al.
(2021), two of dynamics, and two regressions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from unn.programs import (
    Bernoulli,
    Binomial,
    LogNormal,
    MultivariateNormal,
    Normal,
    Tracer,
    Uniform,
)

from .densities import Crescent, TwoScales


@dataclass(frozen=True)
class SimulatorTask:
    """A simulator and its usual question.

    Attributes:
        program: program to trace.
        parameters: names of the variables that the usual posterior is of; the others are data.
        posterior_only: whether the benchmark asks for this posterior alone, not for any conditional.
        plates: least and largest sizes of its plates, if their sizes vary.
    """

    program: Callable[[Tracer], None]
    parameters: tuple[str, ...]
    posterior_only: bool = False
    plates: dict[str, tuple[int, int]] = field(default_factory=dict)


def tree(t: Tracer) -> None:
    """Three parameters in a tree, each with noisy nonlinear functions as data."""
    t1 = t.sample("t1", Normal(0.0, 1.0))
    t2 = t.sample("t2", Normal(t1, 1.0))
    t3 = t.sample("t3", Normal(t1, 1.0))
    t.sample("x1", Normal(np.sin(t2) ** 2, 0.2))
    t.sample("x2", Normal(0.1 * t2**2, 0.2))
    t.sample("x3", Normal(0.1 * t3**2, 0.6))
    t.sample("x4", Normal(np.cos(t3) ** 2, 0.1))


def hmm(t: Tracer, steps: int = 10) -> None:
    """A random walk, of which noisy squares are observed."""
    state = t.empty("state", steps)
    for i in range(steps):
        state[i] = t.sample(Normal(state[i - 1] if i else 0.0, 0.5))
    t.sample("x", Normal(state[...] ** 2, 0.5))


def two_moons(t: Tracer) -> None:
    """Two parameters, and a point of a crescent whose centre is two-to-one in them."""
    theta = t.sample("theta", Uniform(-1.0, 1.0), shape=2)
    first = 0.25 - abs(theta[0] + theta[1]) / math.sqrt(2)
    second = (theta[1] - theta[0]) / math.sqrt(2)
    t.sample("x", Crescent([first, second]))


def slcp(t: Tracer, points: int = 4) -> None:
    """A simple likelihood with a complex posterior: normal points of the plane, with their mean and
    covariance as parameters."""
    theta = t.sample("theta", Uniform(-3.0, 3.0), shape=5)
    s1, s2, correlation = theta[2] ** 2, theta[3] ** 2, np.tanh(theta[4])
    mixed = correlation * s1 * s2
    covariance = [[s1**2 + 1e-6, mixed], [mixed, s2**2 + 1e-6]]
    t.sample("x", MultivariateNormal(theta[:2], covariance), shape=points)


def gaussian_linear(t: Tracer) -> None:
    """Ten normal parameters, each observed with normal noise; both variances are 0.1."""
    theta = t.sample("theta", Normal(0.0, math.sqrt(0.1)), shape=10)
    t.sample("x", Normal(theta, math.sqrt(0.1)))


def gaussian_mixture(t: Tracer) -> None:
    """The mean of a mixture of two normal distributions with equal means."""
    theta = t.sample("theta", Uniform(-10.0, 10.0), shape=2)
    t.sample("x", TwoScales(theta))


def linear_regression(t: Tracer, points: int = 10) -> None:
    """A line through any number of noisy points, whose places are random."""
    slope = t.sample("slope", Normal(0.0, 1.0))
    intercept = t.sample("intercept", Normal(0.0, 1.0))
    place = t.sample("place", Normal(0.0, 1.0), shape=points)
    t.sample("y", Normal(intercept + slope * place, 0.5))


def logistic_regression(t: Tracer, points: int = 10) -> None:
    """Labels of any number of random points, with log-odds that are linear in their places."""
    slope = t.sample("slope", Normal(0.0, 2.0))
    intercept = t.sample("intercept", Normal(0.0, 1.0))
    place = t.sample("place", Normal(0.0, 1.0), shape=points)
    t.sample("label", Bernoulli(1 / (1 + np.exp(-(intercept + slope * place)))))


def lotka_volterra(t: Tracer) -> None:
    """Prey and predators, counted with multiplicative noise at irregular times."""
    birth = t.sample("birth", LogNormal(-0.125, 0.5))
    hunting = t.sample("hunting", LogNormal(-3.0, 0.5))
    death = t.sample("death", LogNormal(-0.125, 0.5))
    growth = t.sample("growth", LogNormal(-3.0, 0.5))

    def change(state: list[Any]) -> list[Any]:
        prey, predators = state
        meetings = prey * predators
        return [birth * prey - hunting * meetings, growth * meetings - death * predators]

    states = trajectory(change, [30.0, 1.0], _LOTKA_VOLTERRA_TIMES, 0.1)
    t.sample("prey", LogNormal(np.log(np.stack([s[0] for s in states])), 0.1))
    t.sample("predators", LogNormal(np.log(np.stack([s[1] for s in states])), 0.1))


def sir(t: Tracer) -> None:
    """An epidemic among a million, of which a thousand are tested at irregular times."""
    contact = t.sample("contact", LogNormal(math.log(0.4), 0.5))
    recovery = t.sample("recovery", LogNormal(math.log(0.125), 0.2))

    def change(state: list[Any]) -> list[Any]:
        susceptible, infected = state
        new = contact * susceptible * infected
        return [-new, new - recovery * infected]

    states = trajectory(change, [1 - 1e-6, 1e-6], _SIR_TIMES, 1.0)
    infected = np.clip(np.stack([s[1] for s in states]), 0.0, 1.0)
    t.sample("cases", Binomial(1000, infected))


def trajectory(
    change: Callable[[list[Any]], list[Any]], state: list[Any], times: tuple[float, ...], step: float
) -> list[list[Any]]:
    """States of an ordinary differential equation at given times, by the classical Runge-Kutta method.

    Args:
        change: derivative of the state.
        state: state at time 0.
        times: increasing multiples of ``step``.
        step: length of a step.
    """

    def moved(slope: list[Any], length: float) -> list[Any]:
        return [x + length * dx for x, dx in zip(state, slope, strict=True)]

    states, done = [], 0
    for time in times:
        for _ in range(round(time / step) - done):
            k1 = change(state)
            k2 = change(moved(k1, step / 2))
            k3 = change(moved(k2, step / 2))
            k4 = change(moved(k3, step))
            slopes = zip(k1, k2, k3, k4, strict=True)
            state = moved([(p + 2 * q + 2 * r + s) / 6 for p, q, r, s in slopes], step)
        done = round(time / step)
        states.append(state)
    return states


_LOTKA_VOLTERRA_TIMES = (0.5, 1.1, 2.0, 3.2, 4.5, 6.4, 8.0, 11.0, 15.5, 20.0)
_SIR_TIMES = (5.0, 12.0, 20.0, 31.0, 40.0, 48.0, 61.0, 75.0, 100.0, 140.0)

_ANY_NUMBER = {"points": (1, 20)}

TASKS: dict[str, SimulatorTask] = {
    "tree": SimulatorTask(tree, ("t1", "t2", "t3")),
    "hmm": SimulatorTask(hmm, ("state",)),
    "two-moons": SimulatorTask(two_moons, ("theta",)),
    "slcp": SimulatorTask(slcp, ("theta",)),
    "gaussian-linear": SimulatorTask(gaussian_linear, ("theta",), posterior_only=True),
    "gaussian-mixture": SimulatorTask(gaussian_mixture, ("theta",), posterior_only=True),
    "linear-regression": SimulatorTask(linear_regression, ("slope", "intercept"), plates=_ANY_NUMBER),
    "logistic-regression": SimulatorTask(logistic_regression, ("slope", "intercept"), plates=_ANY_NUMBER),
    "lotka-volterra": SimulatorTask(lotka_volterra, ("birth", "hunting", "death", "growth")),
    "sir": SimulatorTask(sir, ("contact", "recovery")),
}
"""The tasks by name."""
