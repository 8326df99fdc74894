"""The earlier name of ``unn.networks``, so that programs and packages written for it still run."""

import sys

from . import networks as _room

sys.modules[__name__] = _room
