"""The small networks of trained drafters, and what they share while drafting."""
