"""The engine ``solver``: a network derived from the constraint groups of a declaration."""
