"""Python's collector is back after imports, and leaves them alone; each in a process of its own."""

import subprocess
import sys


def said(code):
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.split()


_SETUP = """
import gc, weakref
from jaxfed.host import gc_tuning

class Cycle:
    def __init__(self):
        self.itself = self

def seen_after_collection(of):
    seen = weakref.ref(of)
    del of
    gc.collect()
    return seen() is not None
"""


def test_within_nothing_is_collected_and_afterwards_all_that_is_new():
    code = f"""{_SETUP}
with gc_tuning.importing():
    print(gc.isenabled())
    kept = weakref.ref(Cycle())
print(gc.isenabled(), gc.get_freeze_count() > 1000)
gc.collect()
print(kept() is not None, seen_after_collection(Cycle()))
"""
    assert said(code) == ["False", "True", "True", "True", "False"]


def test_garbage_of_a_second_time_is_no_import():
    code = f"""{_SETUP}
with gc_tuning.importing():
    pass
cycle = Cycle()
left = weakref.ref(cycle)
with gc_tuning.importing():
    del cycle
gc.collect()
print(left() is None)
"""
    assert said(code) == ["True"]


def test_a_collector_that_was_off_stays_off_and_a_failing_import_turns_it_on_again():
    code = f"""{_SETUP}
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
    assert said(code) == ["True", "False"]


def test_at_exit_nothing_is_looked_through():
    code = f"""{_SETUP}
import atexit
atexit.register(lambda: print(gc.get_freeze_count() > 1000))  # the last one first
gc_tuning.leave_at_exit()
print(gc.get_freeze_count() > 1000)
"""
    assert said(code) == ["False", "True"]
