"""jaxfed: semi-supervised federated learning on accelerators, in JAX."""

__version__ = "0.1.0"
