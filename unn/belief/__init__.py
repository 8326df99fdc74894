"""The engine ``belief``: loopy belief propagation and tree-reweighted bounds on graphs of tables.

``marginals`` answers queries about declarations.
"""

import lazy_loader

# the command line reads options without loading torch
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
