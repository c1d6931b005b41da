"""Drills of deployments: a node killed at once, with what it has started, as a power cut would."""

import os
import signal
from contextlib import suppress
from pathlib import Path


def descendants(pid):
    """Return the processes below one, those that left its session included."""
    parents = {}
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (place / "stat").read_text().rpartition(")")[2].split()
            parents[int(place.name)] = int(words[1])
    below, found = {pid}, []
    while fresh := [child for child, parent in parents.items() if parent in below]:
        found += fresh
        below = set(fresh)
        for child in fresh:
            del parents[child]
    return found


def kill(processes, name):
    """Kill one of `jaxfed.flower.deployment.processes.Processes`; nobody is told."""
    processes._reported.add(name)
    process = processes._started[name].process
    if process.poll() is None:
        children = descendants(process.pid)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        process.wait()
