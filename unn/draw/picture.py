"""A figure that notebooks display without a matplotlib backend."""

from __future__ import annotations

import io

from matplotlib.figure import Figure


class Picture(Figure):
    """A matplotlib figure that a notebook displays as the result of a cell."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=100, facecolor=self.get_facecolor())
        return buffer.getvalue()
