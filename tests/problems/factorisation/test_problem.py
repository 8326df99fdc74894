"""Factorisation on the command line: sizes that vary, the test of the inversion, samples that are valid."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.commands import answered, printed, refused

from problems.factorisation import graph as factorisation
from problems.factorisation.problem import FactorisationProblem, InversionProblem


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_sizes_that_vary_are_drawn_from_one_to_the_largest():
    problem = FactorisationProblem()
    config = problem.config_for(None)(rows=3, columns=2, rank=2, vary=True)
    draws = generator(0)
    seen = {tuple(problem.sizes(config, draws).values()) for _ in range(200)}
    assert seen == set(itertools.product((1, 2, 3), (1, 2), (1, 2)))
    assert (
        problem.sizes(replace(config, vary=False), draws)
        == problem.test_sizes(config)
        == {"i": 3, "j": 2, "k": 2}
    )


def test_inversion_is_tested_on_the_identity():
    problem = InversionProblem()
    config = problem.config_for(None)(rows=3, columns=3, rank=3)
    queries = problem.test_queries(config, 4, generator(0))
    identity, trained = queries[""].given, queries["as trained"].given
    assert torch.equal(identity["E"], torch.eye(3).expand(4, 3, 3)) and torch.equal(
        identity["A"], trained["A"]
    )
    R = torch.linalg.inv(identity["A"])
    assert problem.metrics(config, queries[""], {"A": identity["A"], "R": R})["rmse"] == pytest.approx(
        0, abs=1e-3
    )
    where = problem.observed(config, 2, generator(0), problem.test_sizes(config))
    assert sorted(where) == ["A", "E"] and all(mask.all() for mask in where.values())


def test_factorisations_whose_product_is_off_are_drawn_again_and_named(runs, capsys, tmp_path, undrawn):
    values = factorisation.generate("binary", True, 1, 4, 4, 2, generator(0))
    for name, x in values.items():
        np.save(tmp_path / f"{name}.npy", x[0].numpy())
    whole = [f"{name}={tmp_path / name}.npy" for name in values]
    assert "1 of 1 factorisations are valid" in printed(
        capsys, "sample", runs("factorisation"), "--given", *whole
    )
    np.save(tmp_path / "E.npy", values["E"][0].numpy() + 0.11)
    ask = ("sample", runs("factorisation"), "--given", *whole, "--count", 2, "--tries", 3)
    assert "0 of 2 factorisations are valid; not valid: 1, 2" in printed(capsys, *ask)
    data = answered(capsys, *ask)
    assert data["valid"] == [False, False] and data["tries"] == [3, 3]


def test_arrays_of_another_size_than_in_training_are_sampled_at_their_size(runs, capsys, tmp_path, undrawn):
    E, A = tmp_path / "E.npy", tmp_path / "A.npy"
    np.save(E, np.ones((3, 5), dtype=np.float32))
    np.save(A, np.ones((3, 4), dtype=np.float32))
    with pytest.warns(UserWarning, match="axis 'j' has 5 entries, and at most 4 in training"):
        values = answered(capsys, "sample", runs("factorisation"), "--given", f"E={E}")["values"]
    assert {name: np.shape(x) for name, x in values.items()} == {
        "E": (1, 3, 5),
        "A": (1, 3, 2),
        "R": (1, 2, 5),
        "C": (1, 3, 5, 2),
    }
    with pytest.warns(UserWarning, match="axis 'j' has 5 entries"):
        values = answered(capsys, "sample", runs("factorisation"), "--given", f"E={E}", f"A={A}")["values"]
    assert np.shape(values["R"]) == (1, 4, 5) and values["A"] == [np.load(A).tolist()]
    np.save(A, np.ones((4, 4), dtype=np.float32))
    assert "'E'" in refused(capsys, "sample", runs("factorisation"), "--given", f"E={E}", f"A={A}")
    fixed = runs("factorisation", "--embedding", "independent")
    assert "independent embeddings" in refused(capsys, "sample", fixed, "--given", f"E={E}")


def test_what_is_shown_of_a_graph_of_dynamic_sizes_has_the_sizes_of_the_options(capsys):
    nodes = answered(capsys, "show", "factorisation", "--rows", 2, "--columns", 3, "--rank", 4)["nodes"]
    assert nodes == {"A": 8, "R": 12, "C": 24, "E": 6}
