"""Shortest paths in grids with removed edges."""
