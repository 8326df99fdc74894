import random

import networkx

from unn.graph.disjoint_sets import DisjointSets


def test_sets_are_the_connected_components_of_the_merged_pairs():
    generator = random.Random(0)
    pairs = [(generator.randrange(60), generator.randrange(60)) for _ in range(40)]
    sets = DisjointSets[int]()
    for one, other in pairs:
        sets.merge(one, other)
    expected = set(map(frozenset, networkx.connected_components(networkx.Graph(pairs))))
    assert {frozenset(members) for members in sets.sets().values()} == expected
    assert all(sets.root(element) == root for root, members in sets.sets().items() for element in members)


def test_an_element_is_added_on_first_use_in_order():
    sets = DisjointSets[str]()
    assert sets.root("b") == "b"
    sets.merge("a", "b")
    assert sets.elements() == ["b", "a"]
    assert sets.sets() == {"b": ["b", "a"]}


def test_a_long_chain_of_merges_needs_no_recursion():
    sets = DisjointSets[int]()
    for element in range(5000):
        sets.merge(element, element + 1)
    assert sets.root(0) == 5000
