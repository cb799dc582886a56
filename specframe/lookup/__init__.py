"""What retrieval drafters look continuations up in: tries, suffix automata, n-gram pools and
datastores."""
