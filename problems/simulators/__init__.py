"""Simulators whose posteriors are known: the tasks of simulation-based inference."""
