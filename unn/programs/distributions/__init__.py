"""Distributions for programs."""

from .base import Distribution as Distribution
from .base import Rule as Rule
from .continuous import Beta as Beta
from .continuous import Exponential as Exponential
from .continuous import Gamma as Gamma
from .continuous import Laplace as Laplace
from .continuous import LogNormal as LogNormal
from .continuous import Normal as Normal
from .continuous import StudentT as StudentT
from .continuous import Uniform as Uniform
from .discrete import Bernoulli as Bernoulli
from .discrete import Binomial as Binomial
from .discrete import Categorical as Categorical
from .discrete import Permutation as Permutation
from .discrete import Poisson as Poisson
from .mixture import Mixture as Mixture
from .vectors import Dirichlet as Dirichlet
from .vectors import MultivariateNormal as MultivariateNormal
