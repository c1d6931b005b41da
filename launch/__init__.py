"""Command-line entries: run, sweep, report, audit, costs, bounds, flower, and those that measure.

An entry reads flags; the work is in `jaxfed` and `benchmarks`. A wheel has this folder as `jaxfed.launch`, so
that entries import each other relatively.

Importing this package, before JAX starts, lets XLA:CPU use the full width of AVX-512 where the
processor has it: 5 to 10 % on the bit kernels. What `XLA_FLAGS` already says about it stands.
"""

import os

_WIDTH = "xla_cpu_prefer_vector_width"
if _WIDTH not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --{_WIDTH}=512".strip()
