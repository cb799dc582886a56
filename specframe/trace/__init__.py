"""Traces: what is kept of the steps of a run, for looking at them afterwards."""
