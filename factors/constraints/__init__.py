"""Constraints: conditions that values satisfy or violate."""
