"""Which tests of the contract suite are slow for distributions of trees."""

import pytest

SLOW = (
    "test_everything_compiles_without_graph_breaks_where_it_can",
    "test_no_feasible_point_beats_the_mirror",
)


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.parent.name == "trees" and item.name in SLOW:
            item.add_marker(pytest.mark.slow)
