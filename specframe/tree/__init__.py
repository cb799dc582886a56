"""Tree policies: which of the proposals is worth verifying."""
