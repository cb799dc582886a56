"""Clocks, counts of an answer, the numbers of a run, and intervals for them."""
