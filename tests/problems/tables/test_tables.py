"""Models of tables from files are declared with their distribution, and any engine may learn from it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import unn
from problems.tables.graph import chain, declare, read
from problems.tables.problem import TablesConfig, TablesProblem
from unn.errors import DataError
from unn.exact import inference

SPRINKLER = """network sprinkler {
}
variable rain { type discrete [ 2 ] { no, yes }; }
variable class { type discrete [ 3 ] { low, middle, high }; }
variable "wet grass" { type discrete [ 2 ] { no, yes }; }
probability ( rain ) { table 0.8, 0.2; }
probability ( class | rain ) { (no) 0.5, 0.5, 0.0; (yes) 0.1, 0.2, 0.7; }
probability ( "wet grass" | rain, class ) {
  (no, low) 1.0, 0.0; (no, middle) 0.6, 0.4; (no, high) 0.1, 0.9;
  (yes, low) 0.3, 0.7; (yes, middle) 0.2, 0.8; (yes, high) 0.0, 1.0;
}
"""


def test_a_declared_network_has_the_marginals_of_its_file() -> None:
    file = read(SPRINKLER, "sprinkler.bif")
    g = declare(file)
    # a keyword and a name with a space are replaced by numbers
    assert list(g.variables) == ["rain", "v1", "v2"]
    answer = unn.exact.marginals(g)
    expected = inference.marginals(file.model)
    torch.testing.assert_close(answer.log_partition, expected.log_partition, atol=1e-12, rtol=0)
    for k, name in enumerate(g.variables):
        own = expected.probabilities[:, k, : len(file.states[k])]
        torch.testing.assert_close(answer[name], own, atol=1e-12, rtol=0)
    assert float(answer["v1"][0, 2]) == pytest.approx(0.2 * 0.7)


def test_marginals_of_a_chain_are_those_of_forward_and_backward_messages() -> None:
    g = chain(6, 3, 1.5, 4)
    single, pairs = (getattr(g, name).double().numpy() for name in ("single", "pairs"))
    forward, backward = [np.ones(3)], [np.ones(3)]
    for i in range(5):
        # the energy is minus the scores
        forward.append((forward[-1] * np.exp(single[i])) @ np.exp(pairs[i]))
        j = 5 - i
        backward.append(np.exp(pairs[j - 1]) @ (np.exp(single[j]) * backward[-1]))
    weights = np.array(forward) * np.exp(single) * np.array(backward[::-1])
    expected = weights / weights.sum(1, keepdims=True)
    np.testing.assert_allclose(unn.exact.marginals(g)["x"][0].numpy(), expected, atol=1e-6)


def test_examples_are_exact_samples(tmp_path: Path) -> None:
    path = tmp_path / "sprinkler.bif"
    path.write_text(SPRINKLER)
    problem, config = TablesProblem(), TablesConfig(file=str(path))
    values = problem.generate(config, 20_000, torch.Generator().manual_seed(0), {})
    exact = unn.exact.marginals(problem.declare(config))
    for name, x in values.items():
        torch.testing.assert_close(x.mean(0).double(), exact[name][0].double(), atol=0.015, rtol=0)
    # parents and children together: dry grass and no rain
    both = (values["rain"][:, 0] * values["v2"][:, 0]).mean()
    assert float(both) == pytest.approx(0.8 * (0.5 * 1 + 0.5 * 0.6), abs=0.015)


def test_metrics_of_the_most_probable_values_and_of_samples() -> None:
    problem, config = TablesProblem(), TablesConfig(nodes=5)
    generator = torch.Generator().manual_seed(1)
    query = problem.test_queries(config, 2000, generator)["half given"]
    marginals = unn.exact.marginals(problem.declare(config), query.given)["x"]
    best = torch.nn.functional.one_hot(marginals.argmax(-1), 3).float()
    figures = problem.metrics(config, query, {"x": best})
    assert figures["probability"] == pytest.approx(figures["highest"])
    samples = problem.metrics(config, query, dict(query.truth))
    assert samples["probability"] == pytest.approx(figures["of_samples"], abs=0.03)


def test_two_variables_of_one_name_and_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    twice = SPRINKLER.replace('"wet grass"', "v1")
    with pytest.raises(DataError, match="two variables are named 'v1'"):
        declare(read(twice, "sprinkler.bif"))
    with pytest.raises(DataError, match="missing.bif"):
        TablesProblem().declare(TablesConfig(file=str(tmp_path / "missing.bif")))
    with pytest.raises(DataError, match="MARKOV or BAYES"):
        read("nothing", "model.uai")


def test_empty_files_and_names_of_the_declaration_are_no_surprise(tmp_path: Path) -> None:
    path = tmp_path / "empty.bif"
    path.write_text("")
    with pytest.raises(DataError, match=r"empty\.bif"):
        TablesProblem().declare(TablesConfig(file=str(path)))
    with pytest.raises(DataError, match=r"^bad\.bif, line 1"):
        read("nonsense", "bad.bif")
    g = declare(read(SPRINKLER.replace("rain", "table0"), "sprinkler.BIF"))
    assert next(iter(g.variables)) == "v0"


def test_a_declared_network_with_rounded_rows_is_that_of_its_file() -> None:
    text = (
        "network n { }\nvariable A { type discrete [2] { no, yes }; }\n"
        "probability ( A ) { table 0.3, 0.7; }\nvariable B { type discrete [3] { x, y, z }; }\n"
        "probability ( B | A ) { (no) 0.333, 0.333, 0.333; (yes) 0.167, 0.167, 0.667; }\n"
    )
    probabilities = unn.exact.marginals(declare(read(text, "rounded.bif")))["A"][0].double()
    torch.testing.assert_close(probabilities, torch.tensor([0.3, 0.7]).double(), rtol=0, atol=1e-6)


def test_moving_or_training_a_model_leaves_the_graph_of_the_problem_as_it_is() -> None:
    problem = TablesProblem()
    config = problem.config_for("exact")(nodes=4)
    network = problem.network(config, {}).double()
    with torch.no_grad():
        for array in (*network.parameters(), *network.buffers()):
            array.zero_()
    declared = problem.declare(config)
    arrays = [*declared.parameters(), *declared.buffers()]
    assert arrays
    assert all(array.dtype == torch.float32 for array in arrays)
    assert any(bool(array.any()) for array in arrays)
