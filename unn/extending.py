"""Everything that writers of factors, regularizers, constraints, engines, problems and verbs import, beside
``unn`` itself.

Names are imported when they are first used, so that the module of a problem loads without torch; they are
listed in ``extending.pyi``.
"""

from __future__ import annotations

import lazy_loader

_import, __dir__, __all__ = lazy_loader.attach_stub(__package__, __file__)


def __getattr__(name: str) -> object:
    if name not in __all__:
        from .errors import unknown

        raise AttributeError("module 'unn.extending': " + unknown("name", name, __all__))
    return _import(name)
