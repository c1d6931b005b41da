"""Strict numerics for every test: no silent promotion of dtypes or ranks, two forced CPU devices."""

import os

# Before JAX starts: two host devices, so that sharded execution is tested without an accelerator.
_FLAG = "--xla_force_host_platform_device_count=2"
if _FLAG not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAG}".strip()

import jax  # noqa: E402
from hypothesis import settings  # noqa: E402

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# Compilation makes first examples slow; the same examples on every run keep CI repeatable.
settings.register_profile("jaxfed", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("jaxfed")
