"""Waits of Flower's programs, shorter while messages come.

Flower 1.42 has these waits as constants of its code; a round would spend most of its time in them.

* A SuperNode without a message asks for one every 3 s. Of three nodes the last one begins 2.3 s after a
  message was sent, on average.
* A SuperExec asks for a task every second.
* A part of a message that has not arrived yet is asked for again after 1, 2, 4, ... s. That happens often: a
  task is there before its message, and a message before its parts.

Here they are a tenth of a second and less after the last message, then ever longer up to Flower's own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

_NODE_LOOP = "flwr.supernode.start_client_internal"
_EXECUTOR_LOOP = "flwr.supercore.superexec.run_superexec"
_PULLS = (
    "flwr.supercore.inflatable.inflatable_utils",
    (
        "pull_objects",
        "pull_and_inflate_object_from_tree",
    ),
)
_CLIENT = "flwr.supercore.runtime"
_SHORTEST, _UNTIL_A_REPLY = 0.1, 0.05  # seconds
_SHARE = 1 / 20  # of the time since the last message
_FIRST_RETRY = 0.05  # seconds
_TRIES = 100  # for a message, after each of which the client app waits as long


class Waits:
    """In place of the module `time` in a loop of Flower that uses `sleep` alone."""

    def __init__(
        self,
        most: float,
        *,
        busy_below: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Begin as after a message.

        Args:
            most: seconds between two questions after a long time without a message.
            busy_below: a wish for a shorter wait means that a message is being worked on.
            clock: seconds that never go back.
            sleep: waits for some seconds.
        """
        self._most, self._busy_below = most, busy_below
        self._clock, self._sleep = clock, sleep
        self._last = clock()

    def message(self) -> None:
        """Begin anew with short waits: there is a message."""
        self._last = self._clock()

    def sleep(self, seconds: float) -> None:
        """Wait before the next question.

        Args:
            seconds: Flower's wish.
        """
        if seconds < self._busy_below:
            self.message()
            self._sleep(_UNTIL_A_REPLY)
        else:
            idle = self._clock() - self._last
            self._sleep(min(self._most, max(_SHORTEST, idle * _SHARE)))


def shorten_node() -> None:
    """Shorten the waits of the SuperNode of this process."""
    import_module(_NODE_LOOP).time = Waits(3.0, busy_below=1.0)  # type: ignore[attr-defined]
    shorten_pulls()


def shorten_executor() -> Waits:
    """Shorten the waits of the SuperExec of this process; who starts a task says so to what is returned."""
    waits = Waits(1.0)
    import_module(_EXECUTOR_LOOP).time = waits  # type: ignore[attr-defined]
    return waits


def shorten_pulls() -> None:
    """Ask sooner for a part of a message that is still on its way."""
    module, functions = _PULLS
    for name in functions:
        defaults: dict[str, Any] = getattr(import_module(module), name).__kwdefaults__
        defaults["initial_backoff"] = _FIRST_RETRY


def wait_for_message() -> None:
    """Let the client app of this process wait for its message, if the task was there before it.

    A node makes the task first, and Flower's app, which is slow to start, fails if it finds no message.
    """
    client = import_module(_CLIENT).RuntimeHttpClient
    pull = client.PullMessages

    def pull_patiently(self: Any, request: Any) -> Any:
        for _ in range(_TRIES):
            answer = pull(self, request)
            if answer.messages_list:
                break
            time.sleep(_FIRST_RETRY)
        return answer

    client.PullMessages = pull_patiently
