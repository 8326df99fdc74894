"""The declaration: named arrays, factors and what follows from them; it knows no engine."""
