"""Protocols between parties that exchange bytes: sessions, secure Hamming distances, row sums, transfers.

The wing knows bytes, integers and parties, but no data sets and no methods; it uses JAX for products of codes
only. `xclp` calls `cross_steps`. `session` is built on `primitives`, all protocols on both.
"""
