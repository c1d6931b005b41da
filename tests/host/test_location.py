"""Paths that users give: the home folder, and names that the system cannot look for."""

from pathlib import Path

import pytest

import jaxfed
from jaxfed.config import file as config_file
from jaxfed.data import load
from jaxfed.errors import UsageError
from jaxfed.experiment.store.records import find
from jaxfed.host.location import file_to_write, folder_to_write, location
from jaxfed.models.pretrained import find_weights
from jaxfed.reports.documents.report import write_report


def test_home_is_expanded_and_nothing_else(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert location("~/x", "--workdir") == tmp_path / "x"
    assert location("run[1]/*", "--workdir") == Path("run[1]/*")
    assert location(Path("a") / "b", "--workdir") == Path("a/b")


@pytest.mark.parametrize("given", [3, None, ["a", "b"], b"a"])
def test_what_is_no_path(given):
    words = f"is of type {type(given).__name__}; give a path, as text$"
    with pytest.raises(UsageError, match=f"^--workdir: {words}"):
        location(given, "--workdir")
    with pytest.raises(UsageError, match=f"^name_or_path: {words}"):
        load(given)
    with pytest.raises(UsageError, match=f"^workdir: {words}"):
        jaxfed.open(given)
    with pytest.raises(UsageError, match=f"^file: {words}"):
        jaxfed.load_predictor(given)


def test_a_file_to_write_is_asked_for_and_left_as_it_is(tmp_path):
    there = tmp_path / "a.json"
    there.write_text("kept")
    assert file_to_write(there, "--out").read_text() == "kept"
    assert not file_to_write(tmp_path / "b" / "c.json", "--out").parent.exists()
    assert list(tmp_path.iterdir()) == [there]


def test_a_folder_to_write_is_asked_for_and_not_made(tmp_path):
    assert folder_to_write(tmp_path, "--out") == tmp_path
    assert not folder_to_write(tmp_path / "a" / "b", "--out").parent.exists()
    (tmp_path / "file").touch()
    for place in ("file", "file/x"):
        words = f"^--out='{tmp_path}/{place}': cannot write in {tmp_path}/file: Not a directory"
        with pytest.raises(UsageError, match=words):
            folder_to_write(tmp_path / place, "--out")
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{tmp}", "--out='{tmp}': cannot write in {tmp}: Is a directory"),
        ("{tmp}/file/x.json", "cannot write in {tmp}/file: Not a directory"),
        ("/proc/x/y.json", "--out='/proc/x/y.json': cannot write in /proc: "),
    ],
)
def test_files_that_cannot_be_written(tmp_path, text, words):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError) as caught:
        file_to_write(text.format(tmp=tmp_path), "--out")
    assert words.format(tmp=tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


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
        with pytest.raises(UsageError, match=f"^{key}='{long}': File name too long"):
            write_report(*report)
    with pytest.raises(UsageError, match=f"^config.preprocessing.weights='{long}"):
        find_weights("efficientnet_lite0", long)
    with pytest.raises(UsageError, match=f"^root='{tmp_path}/none': no such folder"):
        load("cifar10", root="~/none")
    assert not (tmp_path / "~").exists()
