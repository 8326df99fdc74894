"""What is observed in training: any subset of the nodes."""

import math

import pytest
import torch

from problems.factorisation.problem import FactorisationProblem, HierarchicalProblem
from problems.generated.observations import any_nodes
from problems.sorting.problem import SortingProblem

PROBLEMS = {kind.name: kind() for kind in (SortingProblem, FactorisationProblem, HierarchicalProblem)}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("factorisation", {"rows": 3, "columns": 2, "rank": 2}),
        ("hierarchical", {"rank": 3}),
        ("sorting", {"length": 3}),
    ],
    ids=str,
)
def test_any_subset_of_the_nodes_is_observed_how_many_is_uniform(name, options):
    problem = PROBLEMS[name]
    graph = problem.declare(problem.config_for(None)(**options))
    sizes = problem.test_sizes(problem.config_for(None)(**options))
    shapes = graph.adjacency(**sizes).shapes
    draws = 12_000
    observed = any_nodes(graph, draws, generator(0), sizes)
    assert {key: tuple(x.shape) for key, x in observed.items()} == {
        key: (draws, *shape) for key, shape in shapes.items()
    }
    assert all(x.dtype == torch.bool for x in observed.values())
    flat = torch.cat([x.reshape(draws, -1) for x in observed.values()], 1)
    nodes = flat.shape[1]
    counts = torch.bincount(flat.sum(1), minlength=nodes).double()
    assert len(counts) == nodes and counts.min() > 0
    # chi-square, five standard deviations above its mean
    assert float(((counts - draws / nodes) ** 2 / (draws / nodes)).sum()) < nodes - 1 + 5 * math.sqrt(
        2 * (nodes - 1)
    )
    share = flat.double().mean(0)
    assert (share - (nodes - 1) / (2 * nodes)).abs().max() < 5 * 0.5 / draws**0.5
    again = any_nodes(graph, draws, generator(0), sizes)
    assert all(torch.equal(again[key], observed[key]) for key in observed)
