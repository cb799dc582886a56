"""What the steps of an engine cost on this machine, and how often guesses are right: measured once,
kept on the disk, handed to `tree=auto`."""
