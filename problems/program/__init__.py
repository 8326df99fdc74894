"""Generative programs."""
