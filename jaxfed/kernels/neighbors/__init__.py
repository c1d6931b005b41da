"""Parts of exact nearest-neighbor search; `jaxfed.kernels.knn` is its entry."""
