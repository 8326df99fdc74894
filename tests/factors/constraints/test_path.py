"""Degrees of paths and connectedness: against networkx, and the contract of degrees."""

import itertools

import networkx as nx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.constraints import constraint_contract, penalty_contract

import unn
from factors import Connected, Path

EDGES = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (1, 3), (2, 4)]
NODES = 5


def graph(connected=True, entropy=None):
    g = unn.FactorGraph("roads", node=NODES, edge=len(EDGES))
    entropy = entropy or unn.BinaryEntropy()
    used = g.variable("used", "edge", entropy)
    visited, ends = (g.variable(name, "node", entropy) for name in ("visited", "ends"))
    for name, numbers in zip(("src", "dst"), zip(*EDGES, strict=True), strict=True):
        g.index(name, "edge", list(numbers), into="node")
    g.factor(Path(used["e"], visited["src[e]"], visited["dst[e]"], ends["n"]))
    if connected:
        g.factor(Connected(used["e"], visited["src[e]"], visited["dst[e]"]))
    return g


def values_of(paths):
    used = torch.zeros(len(paths), len(EDGES), dtype=torch.float64)
    visited, ends = torch.zeros(2, len(paths), NODES, dtype=torch.float64)
    for k, path in enumerate(paths):
        visited[k, path] = 1
        ends[k, [path[0], path[-1]]] = 1
        for pair in itertools.pairwise(path):
            used[k, next(n for n, edge in enumerate(EDGES) if set(edge) == set(pair))] = 1
    return {"used": used, "visited": visited, "ends": ends}


def simple_paths():
    net = nx.Graph(EDGES)
    return [p for a in range(NODES) for b in range(a) for p in nx.all_simple_paths(net, a, b)]


def path_values(generator):
    paths = simple_paths()
    return values_of([paths[int(k)] for k in torch.randint(len(paths), (5,), generator=generator)])


def test_paths_of_spins_are_those_of_bits():
    spins = graph(entropy=unn.SignedEntropy())
    generator = torch.Generator().manual_seed(0)
    values = values_of(simple_paths()[:20])
    flipped = {name: (x + (torch.rand(x.shape, generator=generator) < 0.1)) % 2 for name, x in values.items()}
    for bits in (values, flipped):
        for one, other in zip(graph().constraints, spins.constraints, strict=True):
            as_spins = {name: 2 * x - 1 for name, x in bits.items()}
            assert torch.equal(one.violations_of(bits), other.violations_of(as_spins))
            if one.has_loss:
                torch.testing.assert_close(one.part_losses(bits), other.part_losses(as_spins))


TestPath = constraint_contract(lambda: graph(False), path_values)
TestPenaltiesOfPath = penalty_contract(lambda: graph(False))


def test_all_simple_paths_satisfy_both_constraints():
    values = values_of(simple_paths())
    for factor in graph().constraints:
        assert not factor.violations_of(values).any()


@settings(max_examples=100)
@given(bits=st.integers(0, 2 ** len(EDGES) - 1), nodes=st.integers(0, 2**NODES - 1))
def test_components_are_those_of_networkx(bits, nodes):
    used = torch.tensor([[float(bits >> k & 1) for k in range(len(EDGES))]])
    visited = torch.tensor([[float(nodes >> k & 1) for k in range(NODES)]])
    factor = graph().constraints[1]
    # an edge leads on whether or not its nodes are visited
    net = nx.Graph([edge for k, edge in enumerate(EDGES) if used[0, k]])
    net.add_nodes_from(range(NODES))
    marked = [k for k in range(NODES) if visited[0, k]]
    reached = nx.node_connected_component(net, marked[0]) if marked else set()
    assert int(factor.violations_of({"used": used, "visited": visited})) == len(set(marked) - reached)


def test_a_cycle_apart_from_the_path_has_right_degrees_and_is_not_connected():
    g = unn.FactorGraph("two", node=5, edge=4)
    used = g.variable("used", "edge", unn.BinaryEntropy())
    visited, ends = (g.variable(name, "node", unn.BinaryEntropy()) for name in ("visited", "ends"))
    g.index("src", "edge", [0, 2, 3, 4], into="node")
    g.index("dst", "edge", [1, 3, 4, 2], into="node")
    path = g.factor(Path(used["e"], visited["src[e]"], visited["dst[e]"], ends["n"]))
    whole = g.factor(Connected(used["e"], visited["src[e]"], visited["dst[e]"]))
    values = {
        "used": torch.ones(1, 4), "visited": torch.ones(1, 5), "ends": torch.tensor([[1.0, 1, 0, 0, 0]])
    }  # fmt: skip
    assert path.violations_of(values).tolist() == [0]
    assert whole.violations_of(values).tolist() == [3]


def test_nodes_must_be_looked_up_at_both_ends_of_edges():
    g = graph()
    used, visited, ends = (g[name] for name in ("used", "visited", "ends"))
    with pytest.raises(unn.DeclarationError, match="both ends"):
        g.factor(Path(used["e"], visited["n"], visited["dst[e]"], ends["n"], name="p"))
    with pytest.raises(unn.DeclarationError, match="both ends"):
        g.factor(Connected(used["e"], visited["src[e]"], ends["dst[e]"], name="c"))


def test_connectedness_has_no_loss_and_says_so():
    factor = graph().constraints[1]
    with pytest.raises(NotImplementedError, match="part_losses"):
        factor.loss(path_values(torch.Generator().manual_seed(0)))


@pytest.mark.parametrize("name", ["used", "visited"])
def test_entries_that_are_nan_violate_degrees_and_connectedness(name):
    g = graph()
    values = values_of([[0, 1, 2]])
    assert all(int(constraint.violations_of(values)) == 0 for constraint in g.constraints)
    values[name][0, 3] = torch.nan
    assert all(int(constraint.violations_of(values)) > 0 for constraint in g.constraints)
