"""unn logz."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from .options import Json, require_other_file
from .tables import (
    Limits,
    ModelPath,
    Observed,
    evidence_of,
    open_model,
    require_one_row,
    shown_progress,
    write_result,
)
from .verb import Answer, Verb


@dataclass(frozen=True)
class LogPartition(Verb):
    """Partition function of a model file given evidence, exactly."""

    name: ClassVar[str] = "logz"

    model: ModelPath
    evidence: Path | None = None
    """File of evidence in the UAI format."""
    given: Observed = ()
    limits: Limits = Limits()
    out: Path | None = None
    """File for the result in the UAI format (PR)."""
    json: Json = False

    def __call__(self) -> Answer:
        options = self.limits.options()
        require_other_file(self.out, self.model, self.evidence)
        model = open_model(self.model)
        evidence = evidence_of(model, self.evidence, self.given)
        require_one_row(evidence, self.evidence)
        from ..exact import inference
        from ..exact.uai import partition_result

        with shown_progress():
            cost = inference.cost(model.model, evidence, options)
            value = float(inference.log_partition(model.model, evidence, options)[0])
        lines = [f"log partition {value:.12g}, log10 {value / math.log(10):.12g}", str(cost)]
        if value == -math.inf:
            subject = "the evidence" if bool((evidence.values >= 0).any()) else "every assignment"
            lines[0] = f"log partition -inf: {subject} has probability zero"
        if self.out is not None:
            write_result(self.out, partition_result(value))
            lines.append(f"written to {self.out}")
        data = {"log_partition": value, "log10_partition": value / math.log(10)}
        return Answer(tuple(lines), data)
