"""What traces share: the text of tokens, the fate of nodes, and the record of a position."""
