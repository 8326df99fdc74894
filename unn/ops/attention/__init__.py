"""Attention of each node of a graph to its neighbours: one function, several exact kernels."""

from .kernels import attention as attention
from .kernels import choose_kernel as choose_kernel
from .kernels import kernel_names as kernel_names
from .mask import AttentionMask as AttentionMask
