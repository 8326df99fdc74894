"""Moved to unn.draw."""

from .draw.collage import save_collage as save_collage
