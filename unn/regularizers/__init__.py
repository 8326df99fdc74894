"""Regularizers: each determines the domain of a variable, its entropy-like energy and its activation."""

from .ball import Ball as Ball
from .base import Regularizer as Regularizer
from .dropout import Dropped as Dropped
from .elementwise import L1 as L1
from .elementwise import BinaryEntropy as BinaryEntropy
from .elementwise import Box as Box
from .elementwise import Elementwise as Elementwise
from .elementwise import NonNegative as NonNegative
from .elementwise import SignedEntropy as SignedEntropy
from .elementwise import SquaredNorm as SquaredNorm
from .log_partition import LogPartition as LogPartition
from .measured import Counts as Counts
from .measured import Proportions as Proportions
from .normalised import LayerNorm as LayerNorm
from .normalised import RMSNorm as RMSNorm
from .simplex import AlongAxis as AlongAxis
from .simplex import Entropy as Entropy
from .simplex import Simplex as Simplex
from .simplex import SimplexNorm as SimplexNorm
from .simplex import TsallisEntropy as TsallisEntropy
from .subset import SubsetNorm as SubsetNorm
