"""unn: declare a factor graph once, infer any variables given any others.

Names and submodules are imported when they are first used, so that the command line can answer without
loading torch; they are listed in ``__init__.pyi``.
"""

import lazy_loader

__version__ = "0.1.0"
_import, __dir__, _names = lazy_loader.attach_stub(__name__, __file__)

SUBMODULES = (
    "attention",
    "belief",
    "diffusion",
    "draw",
    "errors",
    "exact",
    "gibbs",
    "models",
    "networks",
    "problem",
    "programs",
    "runs",
    "testing",
    "tracing",
    "training",
)
"""What ``unn.NAME`` imports, but ``from unn import *`` does not: some need packages that are not always
there."""

__all__ = [name for name in _names if name not in SUBMODULES]


def __getattr__(name: str) -> object:
    if name in _names:
        return _import(name)
    from .missing import explanation

    raise AttributeError(explanation(name, _names))
