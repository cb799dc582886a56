"""The compiled CPU kernel: weights laid out anew, matrix products, attention, and whole blocks
in one call."""
