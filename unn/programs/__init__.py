"""Graphs of generative programs: a Python program runs once, and the dependences of its values are
recorded."""

from . import operations as operations
from .distributions import Bernoulli as Bernoulli
from .distributions import Beta as Beta
from .distributions import Binomial as Binomial
from .distributions import Categorical as Categorical
from .distributions import Dirichlet as Dirichlet
from .distributions import Distribution as Distribution
from .distributions import Exponential as Exponential
from .distributions import Gamma as Gamma
from .distributions import Laplace as Laplace
from .distributions import LogNormal as LogNormal
from .distributions import Mixture as Mixture
from .distributions import MultivariateNormal as MultivariateNormal
from .distributions import Normal as Normal
from .distributions import Permutation as Permutation
from .distributions import Poisson as Poisson
from .distributions import StudentT as StudentT
from .distributions import Uniform as Uniform
from .plates import Plated as Plated
from .plates import trace_plates as trace_plates
from .traced import Posterior as Posterior
from .traced import Traced as Traced
from .traced import trace as trace
from .tracer import Tracer as Tracer
from .values import Entries as Entries
from .values import Value as Value
