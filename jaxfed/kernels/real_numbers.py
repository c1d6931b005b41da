"""Conversion of arguments to float32. Complex ones are refused: a cast would drop their imaginary part."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxfed.errors import UsageError


def as_float32(name: str, values: ArrayLike) -> jax.Array:
    """An argument in float32; the only cost is that of the conversion.

    Raises:
      UsageError: its dtype is complex.
    """
    if np.iscomplexobj(values):
        dtype = getattr(values, "dtype", "complex")  # lists have none
        raise UsageError(f"{name} must be real, got dtype {dtype}")
    return jnp.asarray(values, jnp.float32)
