"""Trains draft heads on a target's own answers. The only place that imports lightning."""
