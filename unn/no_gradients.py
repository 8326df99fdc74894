"""Computations without gradients that come before others with gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING or tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 11):
    no_gradients = torch.no_grad
    """``torch.no_grad``; under autocast, computations with gradients that follow are right as well."""
else:

    class no_gradients(torch.no_grad):  # noqa: N801
        """``torch.no_grad``; under autocast, computations with gradients that follow are right as well.

        Before version 2.11 they would use parameters in half precision that autocast keeps from the
        computation without gradients, and so have no gradients of them.
        """

        def __exit__(self, *error: object) -> None:
            super().__exit__(*error)
            # compiled code casts parameters itself
            if not torch.compiler.is_compiling():
                torch.clear_autocast_cache()
