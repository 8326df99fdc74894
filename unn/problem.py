"""The public name of ``unn.cli.problem``."""

import sys

from .cli import problem as _room

sys.modules[__name__] = _room
