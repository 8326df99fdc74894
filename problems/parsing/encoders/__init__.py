"""Encoders of sentences."""
