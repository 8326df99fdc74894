"""unn: declare a factor graph once, infer any variables given any others.

Names are imported when they are first used, so that the command line can answer without loading torch; they are listed in ``__init__.pyi``.
"""

import lazy_loader

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
