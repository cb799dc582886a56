"""Buffers of keys and values: how the words of the cache axis lay them out in memory."""
