"""Sudoku whose given digits are images."""
