"""Boolean circuits."""
