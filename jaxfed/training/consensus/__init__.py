"""Agreement on labels of public examples: votes, tallies in the clear or masked."""
