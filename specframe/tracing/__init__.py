"""What traces share: texts of tokens, probabilities and outcomes of nodes, traced positions."""
