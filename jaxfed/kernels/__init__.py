"""Array kernels: jit-compiled, vmappable, with NumPy oracles in `reference`. No word of clients here."""
