"""Files of trained draft heads: published layouts in, our modules out, and back."""
