"""One training loop for every problem.

It is made of torch alone: ``torchrun`` starts several processes, ``DistributedDataParallel`` joins them, ``torch.amp`` mixes precisions.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
