"""Diffusion models of the variables of a graph, conditional on any subset of them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
