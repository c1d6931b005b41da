"""Paths that users give: the home folder, and names that the system cannot look for."""

from pathlib import Path

import pytest

from jaxfed.config import file as config_file
from jaxfed.data import load
from jaxfed.errors import UsageError
from jaxfed.experiment.records import find
from jaxfed.host.location import location
from jaxfed.models.pretrained import find_weights
from jaxfed.reports.report import write_report


def test_home_is_expanded_and_nothing_else(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert location("~/x", "--workdir") == tmp_path / "x"
    assert location("run[1]/*", "--workdir") == Path("run[1]/*")
    assert location(Path("a") / "b", "--workdir") == Path("a/b")


def test_below_a_file_is_nothing(tmp_path):
    (tmp_path / "file").touch()
    assert not location(tmp_path / "file" / "x", "--workdir").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("~nobody-of-this-name", "home directory"),
        ("a" * 300, "File name too long"),
        ("a/" * 3000, "File name too long"),
        ("a\0b", "null"),
        ("a\udcff", "is not UTF-8"),
    ],
)
def test_what_cannot_be_a_path_is_refused_in_one_line(text, words):
    with pytest.raises(UsageError, match=words) as refused:
        location(text, "--workdir")
    assert str(refused.value).startswith("--workdir=")
    assert str(refused.value).isprintable()


def test_home_is_expanded_wherever_a_path_is_given(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("def get_config(variant=''): ...")
    assert config_file.load_module("~/mine.py").get_config() is None
    assert config_file.split_variant("~/mine:smoke") == ("~/mine.py", "smoke")
    (tmp_path / "empty").mkdir()
    for call in (
        lambda: find(["~/empty"]),  # "no run under", not "no such directory"
        lambda: write_report(["~/empty"], "~/out"),
    ):
        with pytest.raises(UsageError, match=f"no run or sweep under {tmp_path}/empty"):
            call()
    long = "a" * 300
    for key, report in (("WORKDIR", [[long]]), ("--out", [["~/empty"], long])):
        with pytest.raises(UsageError, match=f"^{key}={long}: File name too long"):
            write_report(*report)
    with pytest.raises(UsageError, match=f"^config.preprocessing.weights={long}"):
        find_weights("efficientnet_lite0", long)
    with pytest.raises(UsageError, match=f"{tmp_path}/none/cifar10"):
        load("cifar10", root="~/none")
    assert not (tmp_path / "~").exists()
