"""Hydra callbacks that tell a tracker of every run. No tracker is a dependency."""
