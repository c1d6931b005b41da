"""Check the environment variables that JAX reads on import, without importing JAX."""

from __future__ import annotations

import os

from jaxfed.errors import UsageError

_NUM_DEVICES = "JAX_NUM_CPU_DEVICES"


def check_variables() -> None:
    """Refuse values that would cause a traceback in JAX.

    Raises:
        UsageError: an invalid number of devices.
    """
    given = os.environ.get(_NUM_DEVICES)
    if given is None:
        return
    try:
        is_number = int(given) != 0  # below 0: JAX's own default
    except ValueError:
        is_number = False
    if not is_number:
        raise UsageError(f"${_NUM_DEVICES}={given}: use integers from 1 on, or unset it")
