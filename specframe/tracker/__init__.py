"""Trackers: Hydra callbacks that log every run elsewhere. None of them is a dependency."""
