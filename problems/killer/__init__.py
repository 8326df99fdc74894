"""Killer sudoku."""
