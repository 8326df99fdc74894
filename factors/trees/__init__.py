"""Dependency trees: exact sums, marginals and decoding."""
