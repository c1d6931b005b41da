"""docs/network.md and docs/threat-model-network.md: each fault and attack has a test of its outcome."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from jaxfed.config.sections import Deployment

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["network", "threat-model-network"])
def test_every_test_that_the_threat_model_names_exists(page):
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / f"{page}.md").read_text("utf-8")))
    assert len(named) > 15
    source = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert named <= set(re.findall(r"^def (test_\w+)", source, re.MULTILINE))


def test_the_page_names_every_limit():
    page = (ROOT / "docs" / "network.md").read_text(encoding="utf-8")
    assert all(f"`deployment.{each.name}`" in page for each in fields(Deployment))
