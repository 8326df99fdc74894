"""The factor library."""

from unn.graph.structure import Clique as Clique
from unn.graph.structure import Depends as Depends

from .attention.declare import UndirectedAttention as UndirectedAttention
from .attention.declare import undirected_attention as undirected_attention
from .attention.energy_body import EnergyBody as EnergyBody
from .attention.fused import UnrolledAttention as UnrolledAttention
from .attention.masked_entropy import MaskedEntropy as MaskedEntropy
from .constraints.cardinality import Cardinality as Cardinality
from .constraints.different import Different as Different
from .constraints.sum_of_products import SumOfProducts as SumOfProducts
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
from .structured.torch_struct import Structured as Structured
from .trees.entropy import TreeEntropy as TreeEntropy
