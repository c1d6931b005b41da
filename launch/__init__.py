"""Command-line entries: run, sweep, report, audit, costs, bounds, flower; bench, growth, accelerator measure.

An entry reads flags; the work is in `jaxfed` and `benchmarks`. Entries import each other relatively, because
a wheel has this folder as `jaxfed.launch`.

Importing this package before JAX starts lets XLA:CPU use the full width of AVX-512 if the processor has it,
which makes the bit kernels 5 to 10 % faster. A width that `XLA_FLAGS` already sets is kept.
"""

import os

_WIDTH = "xla_cpu_prefer_vector_width"
if _WIDTH not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --{_WIDTH}=512".strip()
