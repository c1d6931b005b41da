"""Plays the experiment with one peer: python -m launch.peers.play NAME FOLDER."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from launch.peers.played import Diary
from launch.peers.task import load


def main(name: str, folder: Path) -> None:
    """Play the task in the folder and leave there what came of it."""
    peer, diary = import_module(f"launch.peers.{name}"), Diary()
    peer.play(load(folder), diary, folder)
    diary.save(folder)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
