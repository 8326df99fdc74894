"""The public name of ``unn.ops.attention``."""

import sys

from .ops import attention as _room

sys.modules[__name__] = _room
