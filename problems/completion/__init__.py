"""Sequence completion."""
