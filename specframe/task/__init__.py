"""Tasks: what a run does with the composed engine."""
