"""Measuring a run: the clock, the meter of one answer, metrics, and bootstrap intervals."""
