"""Runtimes: how a forward pass is launched."""
