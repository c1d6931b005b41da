"""Parts of the conjugate-gradient solver; `jaxfed.kernels.conjugate_gradient` is its entry."""
