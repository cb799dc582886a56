"""Targets: whose text it is."""
