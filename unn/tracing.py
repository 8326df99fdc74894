"""The earlier name of ``unn.programs``, so that programs and packages written for it still run."""

import sys

from . import programs as _room

sys.modules[__name__] = _room
