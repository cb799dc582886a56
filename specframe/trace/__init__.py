"""Traces: what is written down of the steps of a run, for looking at them afterwards."""
