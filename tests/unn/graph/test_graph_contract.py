"""Coordinate descent keeps its promises on random multilinear graphs."""

from factors import Multilinear
from unn.testing import GraphContract, graph_cases


class TestRandomMultilinearGraphs(GraphContract):
    @staticmethod
    def cases():
        return graph_cases(Multilinear)
