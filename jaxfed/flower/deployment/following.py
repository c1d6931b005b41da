"""Wait for a SuperLink, and follow a run to its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from threading import Thread

from jaxfed.flower.deployment.control import Controls, Status
from jaxfed.flower.deployment.output import Traceback, readable
from jaxfed.flower.deployment.processes import DeploymentError, Processes

Say = Callable[[str], None]

_POLL_SECONDS = 0.2
_PATIENCE_SECONDS = 3.0  # for the last lines of a finished run


def wait_for_link(control: Controls, processes: Processes, seconds: float) -> None:
    """Return when a SuperLink answers.

    Raises:
        DeploymentError: it ended, or did not answer in time.
    """
    until = time.monotonic() + seconds
    while True:
        try:
            control.online()
            return
        except DeploymentError as error:
            processes.check("link")
            if time.monotonic() > until:
                raise DeploymentError(f"no SuperLink after {seconds:.0f} s: {error}") from error
        time.sleep(_POLL_SECONDS)


def follow(
    control: Controls,
    run: int,
    processes: Processes,
    *,
    say: Say,
    at_each_poll: Callable[[], None] = lambda: None,
) -> Status:
    """Pass a run's lines on until it ends, and say which process has ended meanwhile.

    Raises:
        DeploymentError: the SuperLink ended.
    """
    reader = Thread(target=_pass_on, args=(control, run, say), daemon=True)
    reader.start()
    while True:
        at_each_poll()
        processes.check("link")
        for line in processes.newly_ended():
            say(line)
        try:
            status = control.status(run)
        except DeploymentError:
            processes.check("link")
            time.sleep(_POLL_SECONDS)
            continue
        if status.is_finished:
            reader.join(_PATIENCE_SECONDS)
            return status
        time.sleep(_POLL_SECONDS)


def _pass_on(control: Controls, run: int, say: Say) -> None:
    """Pass the lines of a run on, whole, without those that Flower writes about itself."""
    rest, traceback = "", Traceback(say)
    with suppress(Exception):  # the SuperLink is gone; `follow` says so
        for piece in control.output(run):
            *lines, rest = (rest + piece).split("\n")
            for line in filter(None, map(readable, lines)):
                traceback.say(line)
    if readable(rest):
        traceback.say(readable(rest))
    traceback.end()
