"""Entropies of structured distributions."""
