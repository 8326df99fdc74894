"""The factor library."""

from .attention import UndirectedAttention as UndirectedAttention
from .attention import undirected_attention as undirected_attention
from .birkhoff import Birkhoff as Birkhoff
from .budget import Budget as Budget
from .cardinality import Cardinality as Cardinality
from .conv import Conv2d as Conv2d
from .different import Different as Different
from .directed import Directed as Directed
from .energy_body import EnergyBody as EnergyBody
from .implicit import Implicit as Implicit
from .masked_entropy import MaskedEntropy as MaskedEntropy
from .multilinear import Multilinear as Multilinear
from .structure import Clique as Clique
from .structure import Depends as Depends
from .structured import Structured as Structured
from .sum_of_products import SumOfProducts as SumOfProducts
from .tree import TreeEntropy as TreeEntropy
from .unrolled_attention import UnrolledAttention as UnrolledAttention
