"""Measurements of `launch.bench` and `launch.accelerator`: kernels, protocols, rounds, methods, and peers.

`catalog` names all benchmarks and `timing` runs them. They belong to the repository and are not installed.
Only `launch` imports this package.
"""
