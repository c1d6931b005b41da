"""The costs of a round for a client, counted without training."""
