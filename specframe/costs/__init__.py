"""What the steps of an engine cost on this machine, and how often its guesses are right: measured
once, stored on the disk and handed to `tree=auto`."""
