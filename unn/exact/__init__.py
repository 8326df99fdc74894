"""The engine ``exact``: sum-product and its relatives on graphs of tables, by contraction trees.

``log_partition``, ``marginals``, ``best_values``, ``sample`` and ``cost`` answer queries about declarations;
``read_uai`` and ``read_bif`` read models of the field, which ``unn.exact.inference`` answers.
"""

import lazy_loader

# the command line reads options without loading torch
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
