"""Plain Flower: FedAvg of a small network in JAX."""
