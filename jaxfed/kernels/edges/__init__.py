"""Parts of the graph of neighbors; `jaxfed.kernels.graph` is its entry."""
