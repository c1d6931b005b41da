"""Command-line entries: run, sweep, report, audit, costs, flower; bench, growth, accelerator measure.

An entry reads flags; the work is in `jaxfed` and `benchmarks`. Entries import each other relatively, because
a wheel has this folder as `jaxfed.launch`.

Importing this package before JAX starts lets XLA:CPU use the full width of AVX-512 if the processor has it,
which makes the bit kernels 5 to 10 % faster. A width that `XLA_FLAGS` already sets is kept. Arrays that a
program closes over, as the mean of inputs, become its arguments: repeats that differ in such numbers alone
then share compiled programs.
"""

import os

_WIDTH = "xla_cpu_prefer_vector_width"
if _WIDTH not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --{_WIDTH}=512".strip()
os.environ.setdefault("JAX_USE_SIMPLIFIED_JAXPR_CONSTANTS", "1")
os.environ.setdefault("JAX_EMBEDDED_CONSTANTS_MAX_BYTES", "0")
