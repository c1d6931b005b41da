"""In a process of its own: JAX starts once, and here it has."""

import os
import subprocess
import sys

import jax

from jaxfed.host.parallel.devices import cores_are_devices, one_device_a_core

SCRIPT = """
import jax
from jaxfed.federation.execution import Execution
from jaxfed.host.parallel import devices
assert Execution()  # made before the devices are set
devices.num_cores = lambda: 3
devices.one_device_a_core()
devices.num_cores = lambda: 2
devices.one_device_a_core()
assert jax.device_count() == 3
assert devices.cores_are_devices()
"""


def test_jax_that_has_not_started_has_a_device_a_core():
    environment = {**os.environ, "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"}
    environment.pop("JAX_NUM_CPU_DEVICES", None)
    subprocess.run([sys.executable, "-c", SCRIPT], env=environment, check=True)


def test_what_has_been_asked_for_stands(monkeypatch):
    before = jax.config.values["jax_num_cpu_devices"]
    one_device_a_core()  # the tests' own flag
    jax.devices()
    monkeypatch.setenv("XLA_FLAGS", "")
    one_device_a_core()  # JAX has started
    assert jax.config.values["jax_num_cpu_devices"] == before
    assert not cores_are_devices()
