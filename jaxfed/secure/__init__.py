"""Protocols between parties that exchange bytes: sessions, secure Hamming distances, row sums, transfers.

Bytes, integers and parties: no JAX tracing, no data sets, no methods. `xclp` and what is above import it.
"""
