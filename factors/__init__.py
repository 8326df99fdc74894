"""The factor library."""

from .cardinality import Cardinality as Cardinality
from .conv import Conv2d as Conv2d
from .directed import Directed as Directed
from .implicit import Implicit as Implicit
from .multilinear import Multilinear as Multilinear
from .structure import Clique as Clique
from .structure import Depends as Depends
