"""Diffusion models of the variables of a graph, conditional on any subset of them."""

from .conditional import Condition as Condition
from .conditional import Samples as Samples
from .diffusion import Diffusion as Diffusion
from .masked import MaskedDiffusion as MaskedDiffusion
from .samplers import SAMPLERS as SAMPLERS
from .samplers import restarted as restarted
from .schedule import LinearSteps as LinearSteps
from .schedule import LogNormal as LogNormal
from .schedule import LogUniform as LogUniform
from .schedule import Schedule as Schedule
from .schedule import restarting_levels as restarting_levels
