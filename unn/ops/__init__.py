"""Tensor algebra that knows no graph object."""
