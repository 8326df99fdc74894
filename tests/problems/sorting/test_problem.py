"""Sorting on the command line."""

import torch
from support.commands import printed

from problems.sorting.problem import SortingProblem


def test_baselines_are_measured_on_the_conditions_of_trained_runs(monkeypatch, capsys, runs, undrawn):
    asked = []
    queries = SortingProblem.test_queries
    monkeypatch.setattr(
        SortingProblem, "test_queries", lambda *given: asked.append(queries(*given)) or asked[-1]
    )
    printed(capsys, "evaluate", runs("sorting"))
    printed(capsys, "baselines", "sorting", "--chain-steps", 1)
    assert torch.equal(asked[-1][""].given["u"], asked[-2][""].given["u"])
