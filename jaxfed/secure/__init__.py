"""Protocols between parties that exchange bytes: sessions, secure Hamming distances, row sums, transfers.

Bytes, integers and parties: no data sets, no methods, and JAX for products of codes alone. `cross_steps` and
`later_neighbors` are what `xclp` calls; `session` stands on `primitives`, and all protocols on both.
"""
