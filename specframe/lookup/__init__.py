"""What retrieval drafters look continuations up in: tries, suffix automata, counts, n-gram pools
and datastores."""
