"""Reads docs/threat-model.md and docs/protocols.md, so that tests hold their figures and references."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXT = "\n".join(
    (ROOT / "docs" / f"{page}.md").read_text() for page in ("threat-model", "protocols")
)


def table(name):
    """Rows of the table below <!-- table: name -->, cells without marks of code."""
    below = TEXT.split(f"<!-- table: {name} -->\n", 1)[1].lstrip("\n").split("\n\n", 1)[0]
    rows = [
        [cell.strip().strip("`") for cell in line.strip("| ").split("|")]
        for line in below.splitlines()
    ]
    return rows[2:]


def cited_tests():
    """(file, function) of every test that the pages name."""
    return re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", TEXT)
