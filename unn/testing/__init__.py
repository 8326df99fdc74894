"""Contract suites and hypothesis strategies for your own regularizers, factors, engines and graphs.

Subclass a contract in a test module and implement the methods that build your object; pytest
collects its tests.

Example:
    class TestMyFactor(FactorContract):
        def graph(self):
            g = unn.FactorGraph("mine", n=3)
            X, Y = (g.variable(name, "n", unn.SquaredNorm()) for name in "XY")
            g.factor(MyFactor(X["i"], Y["i"]))
            return g
"""

from .constraints import ConstraintContract as ConstraintContract
from .derivatives import check_derivatives as check_derivatives
from .engines import EngineContract as EngineContract
from .factors import FactorContract as FactorContract
from .graphs import GraphContract as GraphContract
from .regularizers import RegularizerContract as RegularizerContract
from .strategies import GraphCase as GraphCase
from .strategies import domain_point as domain_point
from .strategies import graph_cases as graph_cases
