"""Where a result comes from: the commit of the checkout that made it, or that there is none."""

import subprocess

import pytest

from jaxfed.experiment.run import environment


def git(place, *arguments):
    settings = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", "-C", str(place), *settings, *arguments], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A repository of one commit, which the package lies in."""
    git(tmp_path, "init", "-q")
    (tmp_path / "code.py").write_text("x = 1\n")
    git(tmp_path, "add", "code.py")
    git(tmp_path, "commit", "-q", "-m", "first")
    monkeypatch.setattr(environment, "_ROOT", tmp_path)
    return tmp_path


def origin():
    described = environment.describe()
    return described["commit"], described["dirty"]


def test_the_commit_and_whether_tracked_files_differ_from_it(checkout):
    commit = git(checkout, "rev-parse", "HEAD")
    assert origin() == (commit, False)
    (checkout / "notes").write_text("of nobody's concern\n")
    assert origin() == (commit, False)
    (checkout / "code.py").write_text("x = 2\n")
    assert origin() == (commit, True)
