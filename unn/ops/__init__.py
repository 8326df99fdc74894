"""Tensor algebra, independent of graph objects."""
