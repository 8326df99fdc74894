"""CoNLL-U files."""
