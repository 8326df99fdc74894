"""Factors with an energy."""
