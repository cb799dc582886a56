"""Which tree pays: the worth of rank paths, the chances of looked-up tokens, and speed by
measured costs."""
