"""Sweeps: points, resuming, and the table of results."""
