"""Graphs of generative programs: a Python program runs once, and the dependences of its values are
recorded."""

from . import operations as operations
from .distributions import Bernoulli as Bernoulli
from .distributions import Categorical as Categorical
from .distributions import Distribution as Distribution
from .distributions import Normal as Normal
from .distributions import Permutation as Permutation
from .distributions import Uniform as Uniform
from .traced import Traced as Traced
from .traced import trace as trace
from .tracer import Tracer as Tracer
from .values import Entries as Entries
from .values import Value as Value
