"""The engine ``gibbs``: samples from the energy by Markov chains, with the errors of what they estimate."""

from .annealed import AnnealedLogPartition as AnnealedLogPartition
from .annealed import log_partition as log_partition
from .diagnostics import bulk_size as bulk_size
from .diagnostics import effective_size as effective_size
from .diagnostics import scale_reduction as scale_reduction
from .model import GibbsModel as GibbsModel
from .options import GibbsOptions as GibbsOptions
from .queries import Draws as Draws
from .queries import GibbsMarginals as GibbsMarginals
from .queries import marginals as marginals
from .queries import sample as sample
