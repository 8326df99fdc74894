"""Nonograms of one size: one declaration for all, whose rules can be learned from solved ones."""
