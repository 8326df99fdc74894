"""Gaussian fields on a grid."""
