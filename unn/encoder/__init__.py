"""The engine ``encoder``: marginals estimated by a transformer encoder."""
