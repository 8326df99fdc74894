"""Ising grids."""
