"""Which tree is worth its cost on this machine: chances of guesses, times of passes, and the trees
that give most tokens a millisecond."""
