"""Array helpers of kernels: arguments in float32, and gathers without bounds checks."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxfed.errors import UsageError


def as_float32(name: str, values: ArrayLike) -> jax.Array:
    """Convert an argument to float32. Complex ones are refused: a cast would drop their imaginary part.

    Raises:
      UsageError: its dtype is complex.
    """
    if np.iscomplexobj(values):
        dtype = getattr(values, "dtype", "complex")  # lists have none
        raise UsageError(f"{name} must be real, got dtype {dtype}")
    return jnp.asarray(values, jnp.float32)


def gather_unchecked(x: jax.Array, places: jax.Array) -> jax.Array:
    """Gather rows without bounds checks: x[places], [n, ...], [...] -> [..., ...].

    The indices must be valid: integers in [0, len(x)).

    Plain indexing first maps negative numbers, which count from the end, in a separate pass over `places`. A
    compiled loop stores the result for every slice of them.
    """
    return x.at[places].get(mode="promise_in_bounds", wrap_negative_indices=False)
