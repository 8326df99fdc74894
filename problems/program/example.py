"""An example of a generative program: a line through noisy points."""

import numpy as np

from unn.programs import Normal, Tracer


def line(t: Tracer, points: int = 4) -> None:
    """Slope and intercept from standard normal priors, and points of the line with noise."""
    slope = t.sample("slope", Normal(0.0, 1.0))
    intercept = t.sample("intercept", Normal(0.0, 1.0))
    t.sample("y", Normal(intercept + slope * np.linspace(0.0, 1.0, points), 0.3))
