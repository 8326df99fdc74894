"""The factor library."""

from .conv import Conv2d as Conv2d
from .multilinear import Multilinear as Multilinear
