"""Scores of parsers."""
