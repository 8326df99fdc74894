"""One training loop for every problem.

It uses torch alone: ``torchrun`` for several processes, ``DistributedDataParallel`` for their gradients and
``torch.amp`` for mixed precision.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
