"""Reads docs/threat-model.md, so that tests hold its figures and its references to what is measured."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "threat-model.md").read_text()


def table(name):
    """Rows of the table below <!-- table: name -->, cells without marks of code."""
    below = TEXT.split(f"<!-- table: {name} -->\n", 1)[1].lstrip("\n").split("\n\n", 1)[0]
    rows = [
        [cell.strip().strip("`") for cell in line.strip("| ").split("|")]
        for line in below.splitlines()
    ]
    return rows[2:]


def cited_tests():
    """(file, function) of every test that the document names."""
    return re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", TEXT)
