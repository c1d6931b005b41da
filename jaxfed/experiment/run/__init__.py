"""One experiment: the loop over rounds, its progress and its summary."""
