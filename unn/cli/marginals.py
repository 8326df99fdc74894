"""unn marginals."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from tyro.conf import arg

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
class Marginals(Verb):
    """Probabilities of the states of variables of a model file given evidence, exactly."""

    name: ClassVar[str] = "marginals"

    model: ModelPath
    evidence: Path | None = None
    """File of evidence in the UAI format."""
    given: Observed = ()
    want: Annotated[tuple[str, ...], arg(metavar="VARIABLE [...]")] = ()
    """Variables to show; all by default."""
    limits: Limits = Limits()
    out: Path | None = None
    """File for the result in the UAI format (MAR), which has all variables."""
    json: Json = False

    def __call__(self) -> Answer:
        options = self.limits.options()
        require_other_file(self.out, self.model, self.evidence)
        model = open_model(self.model)
        wanted = [model.number_of(name) for name in self.want] or range(len(model.names))
        evidence = evidence_of(model, self.evidence, self.given)
        require_one_row(evidence, self.evidence)
        from ..exact import inference
        from ..exact.uai import marginals_result

        with shown_progress():
            answer = inference.marginals(model.model, evidence, options)
        require_possible(model, float(answer.log_partition[0]))
        rows = answer.probabilities[0].tolist()
        lines, data = [], {}
        for variable in wanted:
            pairs = dict(zip(model.states[variable], rows[variable], strict=False))
            shown = ", ".join(f"{state} {p:.6f}" for state, p in pairs.items())
            lines.append(f"{model.names[variable]}: {shown}")
            data[model.names[variable]] = pairs
        if self.out is not None:
            write_result(self.out, marginals_result(answer.probabilities[0], model.model.states))
            lines.append(f"written to {self.out}")
        return Answer(tuple(lines), {"marginals": data, "log_partition": float(answer.log_partition[0])})
