"""``python -m unn``, as ``torchrun -m unn`` starts it."""

import sys

from .cli.main import main

sys.exit(main())
