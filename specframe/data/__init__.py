"""Prompts: files that a user gives, and the built-in set."""
