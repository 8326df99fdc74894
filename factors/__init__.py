"""The factor library."""

from unn.graph.layers import LayerAttention as LayerAttention
from unn.graph.layers import SpatialAttention as SpatialAttention
from unn.graph.structure import Clique as Clique
from unn.graph.structure import Depends as Depends

from .attention.declare import UndirectedAttention as UndirectedAttention
from .attention.declare import undirected_attention as undirected_attention
from .attention.energy_body import EnergyBody as EnergyBody
from .attention.fused import UnrolledAttention as UnrolledAttention
from .attention.masked_entropy import MaskedEntropy as MaskedEntropy
from .constraints.all_different import AllDifferent as AllDifferent
from .constraints.among import Among as Among
from .constraints.cardinality import Cardinality as Cardinality
from .constraints.different import Different as Different
from .constraints.equation import Equation as Equation
from .constraints.equation import SumOfProducts as SumOfProducts
from .constraints.logic import Implies as Implies
from .constraints.logic import Not as Not
from .constraints.path import Connected as Connected
from .constraints.path import Path as Path
from .constraints.table import Table as Table
from .energies.conv import Conv2d as Conv2d
from .energies.counting import CountEnergy as CountEnergy
from .energies.directed import Directed as Directed
from .energies.implicit import Implicit as Implicit
from .energies.multilinear import Multilinear as Multilinear
from .energies.squared_residual import SquaredResidual as SquaredResidual
from .energies.weighted import EqualBits as EqualBits
from .energies.weighted import LossEnergy as LossEnergy
from .energies.weighted import WeightedProduct as WeightedProduct
from .structured.birkhoff import Birkhoff as Birkhoff
from .structured.budget import Budget as Budget
from .structured.counts import CountDistribution as CountDistribution
from .structured.counts import count_distribution as count_distribution
from .structured.torch_struct import Structured as Structured
from .trees.entropy import TreeEntropy as TreeEntropy
