"""Cache managers: where keys and values live."""
