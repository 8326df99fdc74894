"""Names of tensors in earlier versions."""

from __future__ import annotations

import re

_IN_BLOCKS = {"told": "conditioning", "everyone": "global_token"}
_PATTERN = re.compile(rf"(\bblocks\.\d+\.)({'|'.join(_IN_BLOCKS)})\.")


def current_name(text: str) -> str:
    """A text with the present names of the tensors of transformer blocks in it, such as a key of a state or a
    line of a signature."""
    return _PATTERN.sub(lambda match: f"{match[1]}{_IN_BLOCKS[match[2]]}.", text)
