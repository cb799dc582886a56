"""Composition: from the words of a command line to components: bind, check, explain, load, keep
loaded."""
