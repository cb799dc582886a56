"""Prompts: prompt files and their questions, answers of a model, and corpora of token ids."""
