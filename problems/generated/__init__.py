"""Parts that problems with generated examples share."""
