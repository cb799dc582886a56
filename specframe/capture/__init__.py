"""Capture: functions of fixed-shape tensors that are captured once as graphs and replayed, and
the wrappers that turn components into such functions."""
