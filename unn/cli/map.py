"""unn map."""

from __future__ import annotations

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
    require_possible,
    shown_progress,
    write_result,
)
from .verb import Answer, Verb


@dataclass(frozen=True)
class MostProbable(Verb):
    """Most probable values of all variables of a model file given evidence, exactly."""

    name: ClassVar[str] = "map"

    model: ModelPath
    evidence: Path | None = None
    """File of evidence in the UAI format."""
    given: Observed = ()
    limits: Limits = Limits()
    out: Path | None = None
    """File for the result in the UAI format (MPE)."""
    json: Json = False

    def __call__(self) -> Answer:
        options = self.limits.options()
        require_other_file(self.out, self.model, self.evidence)
        model = open_model(self.model)
        evidence = evidence_of(model, self.evidence, self.given)
        require_one_row(evidence, self.evidence)
        from ..exact import inference
        from ..exact.uai import best_values_result

        with shown_progress():
            values, weight = inference.best_values(model.model, evidence, options)
        require_possible(model, float(weight[0]))
        states = values[0].tolist()
        best = {name: model.states[v][states[v]] for v, name in enumerate(model.names)}
        lines = [f"{name}: {state}" for name, state in best.items()]
        lines.append(f"log weight {float(weight[0]):.12g}")
        if self.out is not None:
            write_result(self.out, best_values_result(states))
            lines.append(f"written to {self.out}")
        return Answer(tuple(lines), {"values": best, "log_weight": float(weight[0])})
