"""One composed engine in use: the Python API, streaming text, stopping, warm-up and batched
answers."""
