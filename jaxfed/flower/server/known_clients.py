"""clients.json: what the clients of a run said of themselves at its first start.

A server that starts again compares: a client with other data, or a new folder, would not continue the run
that is in the workdir. Checksums are keyed by each client (`jaxfed.flower.client.hello`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxfed.errors import Unresumable
from jaxfed.experiment.store.workdir import write_json
from jaxfed.flower.client.hello import Hello
from jaxfed.host import safe_files

CLIENTS = "clients.json"


def read(place: Path, number: int) -> dict[int, str]:
    """Return the checksum of each client's data in an earlier part of this run; {} before its first start.

    Args:
        place: the workdir.
        number: M, the number of clients now.

    Raises:
        Unresumable: the file is damaged, or the run began with another number of clients.
    """
    file = place / CLIENTS
    if not file.exists():
        return {}
    try:
        with safe_files.guarded(file):
            said = safe_files.json_object(safe_files.content_of(file), file)
            found = {int(client): _data(each) for client, each in said.items()}
    except safe_files.Damaged:
        raise Unresumable(f"{file}: damaged; it identifies the clients of this run") from None
    if found.keys() != set(range(number)):
        raise Unresumable(
            f"{file}: the run began with {len(found)} clients, and there are {number} now "
            "(config.deployment.nodes)"
        )
    return found


def write(place: Path, hellos: Mapping[int, Hello]) -> None:
    """Write the file at a run's first start."""
    said = {client: {"name": each.name, "data": each.data} for client, each in hellos.items()}
    write_json(place / CLIENTS, {str(client): each for client, each in sorted(said.items())})


def _data(said: Any) -> str:
    if not isinstance(said["data"], str):
        raise TypeError
    return str(said["data"])
