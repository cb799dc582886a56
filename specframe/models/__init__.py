"""Model files that need no hub: packages of weights, GGUF conversion, tokenizers."""
