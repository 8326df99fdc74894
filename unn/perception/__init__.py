"""The engine ``perception``: values read from images or features, corrected by constraints."""
