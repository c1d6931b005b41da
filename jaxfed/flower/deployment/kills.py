"""Planned kills of nodes in a trial, and what the simulation of it leaves out.

kills = [Kill.parse("2@upload", 3)]
at_each_poll = killing(kills, federation.kill, place / STAGES, print)
left, text = departed(place)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from jaxfed.errors import UsageError
from jaxfed.flower.server import stages

Say = Callable[[str], None]


class Kill(NamedTuple):
    """A node to be killed, and the stage of a round at whose beginning."""

    node: int
    stage: str

    @classmethod
    def parse(cls, text: str, num_nodes: int) -> Kill:
        """Parse NODE@STAGE.

        Raises:
            UsageError: it is not of this form, or there is no such node.
        """
        found = re.fullmatch(r"(\d+)@(\w+)", text)
        if not found:
            raise UsageError(f"--kill={text}: use NODE@STAGE, such as 2@upload")
        if int(found[1]) >= num_nodes:
            raise UsageError(f"--kill={text}: nodes are 0 to {num_nodes - 1}")
        return cls(int(found[1]), found[2])


def killing(
    kills: Sequence[Kill], kill: Callable[[int], None], file: Path, say: Say
) -> Callable[[], None]:
    """Return what kills each node once the server has begun its stage: has written its line to `file`."""
    waiting = list(kills)

    def look() -> None:
        begun = {line["stage"] for line in stages.lines(file)} if waiting else set()
        for each in [each for each in waiting if each.stage in begun]:
            waiting.remove(each)
            kill(each.node)
            say(f"killed node {each.node} at stage {each.stage!r}")

    return look


def kills_never_met(kills: Sequence[Kill], file: Path) -> None:
    """Refuse kills at stages that a finished run did not have.

    Raises:
        UsageError: a run without a stage that a kill names.
    """
    had = dict.fromkeys(line["stage"] for line in stages.lines(file))
    own = [name for name in had if not name.endswith(stages.ENDED) and name != stages.END]
    for node, stage in kills:
        if stage not in had:
            raise UsageError(
                f"--kill={node}@{stage}: nobody was killed, the run had no such stage; use one of "
                f"{', '.join(own)}, and --overwrite"
            )


def departed(place: Path) -> tuple[dict[int, list[int]], str]:
    """Return the clients that left each round of a workdir, and a line on those that had sent something.

    A simulation has no part of a client that leaves, as if the client had not been drawn. It differs from a
    round in which others have computed with what the client sent before.
    """
    left = stages.departures(place)
    first: dict[int, str] = {}
    for line in stages.lines(place / stages.STAGES):
        first.setdefault(line["round"], line["stage"])
    late = [
        f"client {client} left round {number} at {stage!r}"
        for number, by_stage in left.items()
        for stage, clients in by_stage.items()
        for client in clients
        if stage != first[number]
    ]
    beside = f"what was sent before may count: {'; '.join(late)}" * bool(late)
    return {number: _all(by_stage) for number, by_stage in left.items()}, beside


def _all(by_stage: Mapping[str, Sequence[int]]) -> list[int]:
    return sorted({client for clients in by_stage.values() for client in clients})
