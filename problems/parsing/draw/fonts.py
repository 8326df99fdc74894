"""Fonts for words of any script: the default one, then installed ones with the missing characters."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.font_manager import FontProperties

BOXES = "Last Resort High-Efficiency"
"""Comes with matplotlib; has a box for every character. Named as a font of its own, it stands in without a
warning for each glyph."""


def font_for(texts: Iterable[str]) -> FontProperties:
    """A font with fallbacks for all characters of these texts; boxes for those that no installed font has."""
    from matplotlib import rcParams
    from matplotlib.font_manager import FontProperties, fontManager

    usual = rcParams["font.family"]
    paths = tuple(str(fontManager.findfont(FontProperties(family=[family]))) for family in usual)
    letters = frozenset(letter for text in texts for letter in text if not letter.isascii())
    return FontProperties(family=[*usual, *_fallbacks(paths, letters)])


@lru_cache(256)
def _fallbacks(usual: tuple[str, ...], letters: frozenset[str]) -> tuple[str, ...]:
    """Families for letters missing in the previous ones, and boxes for the rest; ``usual`` are paths."""
    from matplotlib.font_manager import fontManager

    missing = {ord(letter) for letter in letters}.difference(*map(_letters_of, usual))
    families: list[str] = []
    upright = [
        entry
        for entry in fontManager.ttflist
        if entry.style == "normal" and str(entry.weight) in ("400", "normal", "regular")
    ]
    known = {entry.name: entry.fname for entry in upright}
    boxes = known.pop(BOXES, None)
    # the largest family without serifs looks most like the usual font
    for name in sorted(known, key=lambda name: (not name.startswith("Noto Sans"), name)):
        if not missing:
            break
        if has := missing & _letters_of(known[name]):
            families.append(name)
            missing -= has
    return (*families, BOXES) if missing and boxes else tuple(families)


@lru_cache(4096)
def _letters_of(path: str) -> frozenset[int]:
    from matplotlib.ft2font import FT2Font

    try:
        return frozenset(FT2Font(path).get_charmap())
    except (OSError, RuntimeError):  # the font was removed, or is invalid
        return frozenset()
