"""What a person sees in the terminal: colours, progress, tables and log lines."""
