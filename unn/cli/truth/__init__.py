"""Exact answers of a query, and scores of the answers of engines against them."""
