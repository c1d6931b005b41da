"""The server's part of a round: what it carries, weighted means, server optimizers."""
