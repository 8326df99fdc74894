"""The engine ``exact``: sum-product and its relatives on graphs of tables, by contraction trees.

``log_partition``, ``marginals``, ``best_values``, ``sample`` and ``cost`` answer queries about declarations;
``read_uai`` and ``read_bif`` read models of the field, which ``unn.exact.inference`` answers.
"""

from . import inference as inference
from .bif import read_bif as read_bif
from .bif import write_bif as write_bif
from .export import to_bayesian_network as to_bayesian_network
from .export import to_model_file as to_model_file
from .files import ModelFile as ModelFile
from .gaussian import GaussianMarginals as GaussianMarginals
from .gaussian import gaussian_marginals as gaussian_marginals
from .mixed import MixedMarginals as MixedMarginals
from .mixed import mixed_marginals as mixed_marginals
from .options import ExactOptions as ExactOptions
from .progress import watched as watched
from .queries import BestValues as BestValues
from .queries import ExactMarginals as ExactMarginals
from .queries import best_values as best_values
from .queries import cost as cost
from .queries import entropy as entropy
from .queries import k_best_values as k_best_values
from .queries import log_partition as log_partition
from .queries import marginals as marginals
from .queries import sample as sample
from .tables import Family as Family
from .tables import TableEvidence as TableEvidence
from .tables import TableModel as TableModel
from .uai import read_uai as read_uai
from .uai import read_uai_evidence as read_uai_evidence
from .uai import write_uai as write_uai
from .uai import write_uai_evidence as write_uai_evidence
