"""Undirected attention."""
