"""Associative memory."""
