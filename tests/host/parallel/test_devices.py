"""In a process of its own: JAX starts once, and here it has."""

import os
import subprocess
import sys

import jax
import pytest

from jaxfed.host.parallel.devices import cores_are_devices, one_device_a_core

SCRIPT = """
import jax
from jaxfed.federation.execution.settings import Execution
from jaxfed.host.parallel import devices
assert Execution()  # made before the devices are set
devices.num_cores = lambda: 3
devices.one_device_a_core()
devices.num_cores = lambda: 2
devices.one_device_a_core()
assert jax.device_count() == 3
assert devices.cores_are_devices()
"""

OF_SEVERAL_PROCESSES = """
import jax
from jaxfed.host.parallel import devices
devices.num_cores = lambda: 3
jax.distributed.is_initialized = lambda: True
devices.one_device_a_core()
assert jax.device_count() == 1
assert not devices.cores_are_devices()
"""


@pytest.mark.parametrize("script", [SCRIPT, OF_SEVERAL_PROCESSES], ids=["alone", "of several"])
def test_jax_that_has_not_started_has_a_device_a_core(script):
    """But those of a run of several processes stay as they are."""
    environment = {**os.environ, "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"}
    environment.pop("JAX_NUM_CPU_DEVICES", None)
    subprocess.run([sys.executable, "-c", script], env=environment, check=True)


def test_what_has_been_asked_for_stands(monkeypatch):
    before = jax.config.values["jax_num_cpu_devices"]
    one_device_a_core()  # the tests' own flag
    jax.devices()
    monkeypatch.setenv("XLA_FLAGS", "")
    one_device_a_core()  # JAX has started
    assert jax.config.values["jax_num_cpu_devices"] == before
    assert not cores_are_devices()
