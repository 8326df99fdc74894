"""Graph colouring."""
