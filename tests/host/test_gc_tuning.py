"""Python's collector is back after imports, and leaves them alone; each in a process of its own."""

import subprocess
import sys

import pytest

SETUP = """
import gc, weakref
from jaxfed.host import gc_tuning

class Cycle:
    def __init__(self):
        self.itself = self
"""
KEPT = """
with gc_tuning.importing():
    print(gc.isenabled())
    kept = weakref.ref(Cycle())
cycle = Cycle()
new = weakref.ref(cycle)
with gc_tuning.importing():
    del cycle  # garbage of a second time is no import
gc.collect()
print(gc.isenabled(), kept() is not None, new() is not None)
"""
OFF = """
try:
    with gc_tuning.importing():
        import no_such_module
except ImportError:
    print(gc.isenabled())
gc.disable()
with gc_tuning.importing():
    pass
print(gc.isenabled())
"""


@pytest.mark.parametrize(
    ("code", "said"), [(KEPT, ["False", "True", "True", "False"]), (OFF, ["True", "False"])]
)
def test_imports_are_never_scanned_again_and_all_else_is(code, said):
    command = [sys.executable, "-c", SETUP + code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == said
