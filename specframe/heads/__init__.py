"""Trained draft heads: networks, the layouts in which they are published, and shipped weights."""
