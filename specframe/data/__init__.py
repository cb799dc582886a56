"""Prompts: files that a user names, published suites, and the built-in set."""
