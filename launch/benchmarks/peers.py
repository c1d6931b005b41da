"""Peers that may not be installed: their rows are left out with a line that says so."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def optional_peer(
    name: str, build: Callable[..., Callable[[], Any]], *inputs: Any
) -> dict[str, Callable[[], Any]]:
    """{name: build(*inputs)}, or {} and a line on stderr when the peer's package is missing."""
    try:
        return {name: build(*inputs)}
    except ImportError as error:
        why = f"{error.name} is not installed" if error.name else str(error)
        print(
            f"bench: peer {name} left out, {why} (pip install -r requirements-peers.txt)",
            file=sys.stderr,
        )
        return {}
