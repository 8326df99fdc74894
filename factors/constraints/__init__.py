"""Constraints: conditions that values meet or violate."""
