"""Labels that a round trains on: given ones, and pseudo-labels."""
