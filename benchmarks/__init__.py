"""Measurements of `launch.bench` and `launch.accelerator`: kernels, protocols, rounds, methods, and peers.

`catalog` names all benchmarks, `bench` runs them for `launch.bench`, and `on_device.session` runs the pieces
of `launch.accelerator`. They belong to the repository and are not installed. Only `launch` imports this
package.
"""
