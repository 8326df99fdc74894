"""A command of somebody else's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from unn.extending import Answer, Json, RunFolder, Verb, open_trained


@dataclass(frozen=True)
class Size(Verb):
    """Count the parameters of a run."""

    name: ClassVar[str] = "size"

    run: RunFolder
    json: Json = False

    def __call__(self) -> Answer:
        _, run = open_trained(self.run)
        count = sum(parameter.numel() for parameter in run.network.parameters())
        return Answer((f"{count} parameters",), {"parameters": count})
