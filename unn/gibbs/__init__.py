"""The engine ``gibbs``: samples from the energy by Markov chains, with the errors of what they estimate.

``sample``, ``marginals`` and ``log_partition`` answer queries about declarations, as those of
``unn.exact`` do.
"""

import lazy_loader

# the command line reads options without loading torch
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
