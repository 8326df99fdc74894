"""Nonograms."""
