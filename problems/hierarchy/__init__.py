"""Filtered hierarchical trees: a family of data with an exact answer at every range of correlations."""
