"""docs/network.md and docs/threat-model-network.md: each fault and attack has a test of its outcome."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_that_the_page_names_exists():
    page = (ROOT / "docs" / "network.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("|") and "`test_" in line]
    assert len(rows) > 20
    source = "\n".join(path.read_text() for path in (ROOT / "tests" / "flower").rglob("test_*.py"))
    there = set(re.findall(r"^def (test_\w+)", source, re.MULTILINE))
    named = [re.findall(r"`(test_\w+)`", row.rpartition("|")[0].rpartition("|")[2]) for row in rows]
    assert all(named)
    assert {name for names in named for name in names} <= there


def test_every_test_that_the_threat_model_names_exists():
    page = (ROOT / "docs" / "threat-model-network.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+)`", page))
    assert len(named) > 15
    source = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert named <= set(re.findall(r"^def (test_\w+)", source, re.MULTILINE))


def test_the_page_names_every_limit():
    from dataclasses import fields

    from jaxfed.config.sections import Deployment

    page = (ROOT / "docs" / "network.md").read_text(encoding="utf-8")
    assert all(f"`deployment.{name}`" in page for name in (f.name for f in fields(Deployment)))
