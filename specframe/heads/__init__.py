"""Trained draft heads: their networks, the layouts in which they are published, export, and the
weights that ship."""
