"""Drafters: what might come next."""
