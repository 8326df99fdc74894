"""``python -m unn``, as ``torchrun -m unn`` starts it."""

import sys

from .cli import main

sys.exit(main())
