"""A figure that notebooks can show; matplotlib's own shows itself only once a backend has been chosen."""

from __future__ import annotations

import io

from matplotlib.figure import Figure


class Picture(Figure):
    """A figure of matplotlib, whose picture a notebook shows wherever it is the last line of a cell."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=100, facecolor=self.get_facecolor())
        return buffer.getvalue()
