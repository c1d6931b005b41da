"""Paths that users give: the home folder, and names that the system cannot look for."""

from pathlib import Path

from jaxfed.host.location import file_to_write, folder_to_write, location


def test_home_is_expanded_and_nothing_else(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert location("~/x", "--workdir") == tmp_path / "x"
    assert location("run[1]/*", "--workdir") == Path("run[1]/*")
    assert location(Path("a") / "b", "--workdir") == Path("a/b")


def test_places_to_write_are_asked_for_and_left_as_they_are(tmp_path):
    there = tmp_path / "a.json"
    there.write_text("kept")
    assert file_to_write(there, "--out").read_text() == "kept"
    assert not file_to_write(tmp_path / "b" / "c.json", "--out").parent.exists()
    assert not folder_to_write(tmp_path / "a" / "b", "--out").parent.exists()
    assert list(tmp_path.iterdir()) == [there]


def test_below_a_file_is_nothing(tmp_path):
    (tmp_path / "file").touch()
    assert not location(tmp_path / "file" / "x", "--workdir").exists()
