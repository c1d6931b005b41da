"""Whoever reads a result can check out the code that made it: its commit is in the history of this one."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)


@pytest.fixture
def history():
    """Skips where there is no whole history to look into."""
    try:
        shallow = git("rev-parse", "--is-shallow-repository")
    except FileNotFoundError:
        pytest.skip("git is not installed")
    if shallow.returncode:
        pytest.skip("not a clone of the repository")
    if shallow.stdout.strip() != "false":
        pytest.skip("a shallow clone, which lacks the commits of results")


def commits_named(file: Path) -> set[str]:
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".json":
        return set(re.findall(r'"commit":\s*"([^"]*)"', text))
    lines = re.findall(r"^- commit: (.*)$", text, re.MULTILINE)
    return {commit for line in lines for commit in re.findall(r"\b[0-9a-f]{7,40}\b", line)}


@pytest.mark.usefixtures("history")
def test_every_commit_that_a_result_names_is_in_the_history():
    results = ROOT / "results"
    files = [*results.rglob("*.json"), *results.rglob("report.md")]
    named = {str(file.relative_to(results)): commits_named(file) for file in files}
    there = {commit: _is_ancestor(commit) for commit in set().union(*named.values())}
    assert sum(there.values()) > 5
    assert not {name for name, commits in named.items() if not all(map(there.get, commits))}


def _is_ancestor(commit: str) -> bool:
    return git("merge-base", "--is-ancestor", commit, "HEAD").returncode == 0
