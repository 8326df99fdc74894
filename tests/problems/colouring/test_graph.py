"""Files of graphs, random graphs and the declaration of colouring."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from problems.colouring.graph import colourable_edges, declare, random_edges, read_graph
from unn.errors import DataError

TRIANGLE = (3, [(0, 1), (0, 2), (1, 2)])


@pytest.mark.parametrize(
    "text",
    [
        "0 1\n0 2\n1 2\n",
        "# a triangle\n\n1 0\n2 0\n2 1\n0 1\n",
        "c a triangle\np edge 3 3\ne 1 2\ne 1 3\ne 2 3\n",
        "#a triangle\n0 1\n# its other sides\n0 2\n1 2\n",
        "p col 3 3\r\ne 2 1\r\ne 3 1\r\ne 3 2",
        "e 2 1\ne 3 1\ne 3 2\np edge 3 3\n",
        "p edge 3 6\ne 2 1\ne 3 1\ne 3 2\n",
        "p edge 3 3\ne 1 2\ne 2 1\ne 1 3\ne 3 1\ne 2 3\ne 3 2\n",
    ],
)
def test_graphs_are_read_from_both_formats(text):
    nodes, edges = read_graph(text, "here")
    assert (nodes, sorted(edges)) == TRIANGLE


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no edge"),
        ("c nothing\n", "no edge"),
        ("0 1\n1 1\n", "line 2.*itself"),
        ("0 1\n0 x\n", "line 2.*'0 x'"),
        ("0 1 2\n", "line 1"),
        ("0\n", "line 1"),
        ("0 -1\n", "line 1"),
        ("0 99999999999\n", "line 1.*at most nine digits"),
        ("p edge 3 1\np edge 2 1\ne 1 2\n", "line 2: a second line p"),
        ("p edge 3\n", "line 1.*p edge"),
        ("p edge 0 0\n", "line 1"),
        ("p edge 3 1\ne 1 4\n", "line 2.*out of range"),
        ("e 0 1\n", "line 1.*out of range"),
        ("e 1 2\ne 1 5\np edge 3 1\n", "line 2.*out of range"),
        ("0 1\n0 999999999\n", "line 2.*1,000,000,000 nodes.*at most 1,000,000"),
        ("p edge 5 9\ne 1 2\ne 2 3\n", "2 edges, and its line p announces 9"),
        ("p edge 4 2\n1 2\n2 3\n", "line 2.*expected e A B"),
        ("1 2\n2 3\np edge 4 2\n", "line 1.*expected e A B"),
        ("p edge 100000000000 1\ne 1 2\n", "line 1.*1 to 1,000,000"),
        (f"p edge 3 {'9' * 5000}\ne 1 2\n", "line 1.*p edge"),
    ],
)
def test_malformed_graphs_are_refused_with_their_line(text, message):
    with pytest.raises(DataError, match=message):
        read_graph(text, "here")


@given(nodes=st.integers(2, 30), degree=st.floats(0, 40), seed=st.integers(0, 99))
def test_random_graphs_have_distinct_edges_without_loops(nodes, degree, seed):
    edges = random_edges(nodes, degree, torch.Generator().manual_seed(seed))
    most = nodes * (nodes - 1) // 2
    assert len(set(edges)) == len(edges) == max(1, min(most, round(degree * nodes / 2)))
    assert all(0 <= a < b < nodes for a, b in edges)


@given(nodes=st.integers(2, 20), degree=st.floats(0, 30), colours=st.integers(2, 4), seed=st.integers(0, 99))
def test_colourable_edges_are_distinct_without_loops_and_join_the_parts_of_a_colouring(
    nodes, degree, colours, seed
):
    edges = colourable_edges(nodes, degree, colours, torch.Generator().manual_seed(seed))
    assert len(set(edges)) == len(edges) >= 1 and all(0 <= a < b < nodes for a, b in edges)
    colour = torch.randperm(nodes, generator=torch.Generator().manual_seed(seed)) % colours
    assert all(colour[a] != colour[b] for a, b in edges)
    between = sum(bool(colour[a] != colour[b]) for b in range(nodes) for a in range(b))
    assert len(edges) == max(1, min(between, round(degree * nodes / 2)))


def test_violations_are_the_edges_with_equal_ends():
    g = declare(3, TRIANGLE[1], 3)
    values = torch.eye(3)[torch.tensor([[0, 1, 2], [0, 0, 2], [1, 1, 1]])]
    assert g.constraints[0].violations_of({"X": values}).tolist() == [0, 1, 3]
