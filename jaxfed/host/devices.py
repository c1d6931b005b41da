"""One CPU's cores as devices of their own, so that a round's clients train side by side.

XLA:CPU spreads a product over its cores, and gathers, sums and all that stands between two products over one:
a client of small layers leaves the others idle. Where each core is a device, each has a client
(`jaxfed.federation.client_map`), and what is computed on one device still has all cores.
"""

from __future__ import annotations

import os

import jax

from jaxfed.errors import UsageError

_FORCED = "xla_force_host_platform_device_count"


def one_device_a_core() -> None:
    """Ask JAX for as many CPU devices as this process has cores, where it has not started yet.

    What a user has asked for stands: `XLA_FLAGS` that force a number of them, `JAX_NUM_CPU_DEVICES`. So do
    the devices of a run of several processes.

    Raises:
        UsageError: see `check_platform`.
    """
    _ask_for_cores()
    check_platform()


def check_platform() -> None:
    """Start JAX where `JAX_PLATFORMS` asks for more than the CPU: what is not there shows now.

    A run of several processes starts together, later.

    Raises:
        UsageError: JAX finds no device of the kind.
    """
    asked = os.environ.get("JAX_PLATFORMS", "")
    if asked in ("", "cpu") or jax.distributed.is_initialized():
        return
    try:
        jax.local_devices()
    except (AssertionError, RuntimeError) as error:  # the first where JAX has no plugin for them
        why = " ".join(str(error).partition(" (")[0].split())
        raise UsageError(
            f"$JAX_PLATFORMS={asked}: JAX finds no such device; unset, it takes what there is"
            f"{f': {why}' * bool(why)}"
        ) from error


def _ask_for_cores() -> None:
    asked = _FORCED in os.environ.get("XLA_FLAGS", "") or _num_asked() >= 0
    if asked or jax.distributed.is_initialized():
        return
    try:
        jax.config.update("jax_num_cpu_devices", _num_cores())
    except RuntimeError:  # JAX has started
        return


def cores_are_devices() -> bool:
    """Whether JAX was asked for several devices on one CPU, by `one_device_a_core` or by a user.

    Devices that `XLA_FLAGS` force are for trying out a mesh, and may be more than there are cores.
    """
    return _num_asked() > 1 and jax.default_backend() == "cpu"


def _num_asked() -> int:
    number: int = jax.config.values["jax_num_cpu_devices"]  # below 0: nobody has
    return number


def _num_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
