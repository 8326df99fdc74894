"""The engine ``belief``: loopy belief propagation and tree-reweighted bounds on graphs of tables."""

from .options import BeliefOptions as BeliefOptions
from .queries import BeliefMarginals as BeliefMarginals
from .queries import TableBeliefs as TableBeliefs
from .queries import marginals as marginals
from .queries import table_marginals as table_marginals
from .queries import upper_bound as upper_bound
