"""Checks of the site: dead links, missing headings, networks, pages outside the navigation."""

import tomllib

import pytest
from invoking import ROOT

from docs.generate import checks, navigation, pages
from docs.generate.made import gallery, leaderboard


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ('<a href="other.html#there">x</a><img src="a.png">', None),
        ('<a href="https://elsewhere.org">x</a>', None),
        ('<a href="missing.html">x</a>', "missing.html leads nowhere"),
        ('<a href="other.html#gone">x</a>', "other.html has no such heading"),
        ('<img src="b.png">', "b.png leads nowhere"),
        ('<script src="https://cdn.org/a.js"></script>', "loads https://cdn.org/a.js"),
        ('<link rel="stylesheet" href="//fonts.org/a.css">', "loads //fonts.org/a.css"),
    ],
)
def test_faults_of_html_are_found(body, fault, tmp_path):
    (tmp_path / "index.html").write_text(body)
    (tmp_path / "other.html").write_text('<h2 id="there">x</h2>')
    (tmp_path / "a.png").touch()
    found = checks.faults_of(tmp_path)
    assert (fault is None and not found) or (len(found) == 1 and fault in found[0])


def test_every_page_is_in_the_navigation_once():
    titles = {"a.md": "A", "m/b.md": "B", "m/c.md": "C"}
    nav, faults = navigation.filled(["a.md", {"More": ["m/*"]}], titles)
    assert nav == ["a.md", {"More": [{"B": "m/b.md"}, {"C": "m/c.md"}]}]
    assert not faults
    faults = navigation.filled(["a.md", {"More": ["a.md", "m/b.md", "d.md"]}], titles)[1]
    assert [fault.removeprefix("zensical.toml: ") for fault in faults] == [
        "m/c.md is outside the navigation",
        "there is no page d.md",
        "a.md is there twice",
    ]


def test_links_between_files_lead_to_pages_and_sources(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "results" / "x").mkdir(parents=True)
    (tmp_path / "README.md").write_text("[d](docs/d.md#h) [x](results/x) \n    [no](n)\n")
    (tmp_path / "docs" / "d.md").write_text("[up](../README.md) [code](../a.py) [gone](gone.md)")
    (tmp_path / "results" / "x" / "README.md").write_text("[d](../../docs/d.md)")
    (tmp_path / "a.py").touch()
    site, faults = pages.gathered(tmp_path, {})
    assert faults == ["docs/d.md: gone.md leads nowhere"]
    assert site.texts["index.md"].startswith("[d](d.md#h) [x](results/x/README.md)")
    assert site.texts["d.md"].startswith("[up](index.md) [code](source/a.py.txt)")
    assert site.texts["results/x/README.md"] == "[d](../../d.md)"
    site.write(tmp_path / "out")
    outside = {
        page: "exclude: true" in (tmp_path / "out" / page).read_text() for page in site.texts
    }
    assert outside == {"index.md": False, "d.md": False, "results/x/README.md": True}


@pytest.mark.parametrize(
    "words", ["epochs", "seeds", "best model", "balanced", "mixed precision", "limitations"]
)
def test_a_search_finds_a_guide_first(words):
    """The site's search ranks headings before text, and results are outside of it."""
    guides = "".join((ROOT / "docs" / f"{name}.md").read_text() for name in ("questions", "limits"))
    headings = [line for line in guides.lower().splitlines() if line.startswith("#")]
    assert any(words in heading for heading in headings)


def test_no_page_is_outside_the_navigation():
    made = gallery(ROOT) | leaderboard(ROOT) | {"methods/fedavg.md": "# fedavg"}
    site, faults = pages.gathered(ROOT, made)
    nav = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    assert not faults
    assert not navigation.filled(nav, site.titles)[1]
