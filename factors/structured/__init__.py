"""Regularizers over structures."""
