"""Boltzmann machines of images and labels."""
