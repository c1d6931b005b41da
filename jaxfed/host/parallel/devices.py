"""Use each CPU core as a JAX device, so a round's clients train in parallel.

XLA:CPU runs a matrix product on all cores, but gathers, sums and other operations on one. A client with small
layers leaves the other cores idle. If each core is a device, each trains a client
(`jaxfed.federation.execution`), and computations on a single device still use all cores.
"""

from __future__ import annotations

import os
from contextlib import suppress

import jax

from jaxfed.errors import UsageError

_FORCED = "xla_force_host_platform_device_count"


def one_device_a_core() -> None:
    """Set JAX's number of CPU devices to this process's number of cores, unless JAX has started.

    A user's choice takes precedence: `XLA_FLAGS` that force a number, or `JAX_NUM_CPU_DEVICES`. The devices
    of a run of several processes do not change either.

    Raises:
        UsageError: `JAX_PLATFORMS` names a device that JAX does not find.
    """
    if jax.distributed.is_initialized():
        return
    if _FORCED not in os.environ.get("XLA_FLAGS", "") and _num_asked() < 0:
        with suppress(RuntimeError):  # JAX has started
            jax.config.update("jax_num_cpu_devices", num_cores())
    asked = os.environ.get("JAX_PLATFORMS", "")
    if asked in ("", "cpu"):
        return
    try:
        jax.local_devices()
    except (AssertionError, RuntimeError) as error:  # the first: JAX has no plugin for them
        wrong = f"$JAX_PLATFORMS={asked}: JAX finds no such device"
        raise UsageError(f"{wrong}; unset it to use the available ones") from error


def cores_are_devices() -> bool:
    """True if JAX was set to several devices on one CPU, by `one_device_a_core` or by a user.

    Devices forced by `XLA_FLAGS` are for testing a mesh, and may be more than the cores.
    """
    return _num_asked() > 1 and jax.default_backend() == "cpu"


def _num_asked() -> int:
    number: int = jax.config.values["jax_num_cpu_devices"]  # below 0: not set
    return number


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
