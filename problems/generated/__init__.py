"""What problems share whose examples are generated."""
