"""A draft while it grows: the builder and its draws, the placing of known tokens, and feeding a
growing tree through a network."""
