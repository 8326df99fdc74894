"""Queens on a chessboard."""
