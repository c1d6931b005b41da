"""Damaged, cut, foreign and hostile files: a data set or one line, never a traceback, never a wait."""

import gzip
import json
import logging
import shutil
import zipfile
from functools import partial

import numpy as np
import pandas
import pytest
from damaged_files import ANY, says, says_or_reads
from hf_files import image_table, write_parquet
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from tfds_files import prepared_tfds

from jaxfed.data import load, pack
from jaxfed.data.dataset import Dataset
from jaxfed.data.loading import READERS
from jaxfed.errors import UsageError

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXFED_CACHE", str(tmp_path / "cache"))


def picture(file, size=(6, 5), mode="RGB", **options):
    file.parent.mkdir(parents=True, exist_ok=True)
    channels = {"RGB": (3,), "L": ()}[mode]
    Image.fromarray(RNG.integers(0, 256, (*size[::-1], *channels), dtype=np.uint8)).save(
        file, **options
    )
    return file


def pictures(folder, ending=".png"):
    for name in ("cat", "dog"):
        for number in range(2):
            picture(folder / name / f"{number}{ending}")
    return folder


# --- folders of images ---------------------------------------------------------------------------


def test_hidden_folders_are_no_classes_and_deeper_images_are_read(tmp_path, caplog):
    folder = pictures(tmp_path / "set")
    picture(folder / ".ipynb_checkpoints" / "0-checkpoint.png")
    picture(folder / "__MACOSX" / "0.png")
    picture(folder / "cat" / "more" / "2.jfif", format="JPEG")
    picture(folder / "cat" / ".ipynb_checkpoints" / "0-checkpoint.png")
    (folder / "cat" / "a.heic").write_bytes(b"heic")
    (folder / "cat" / "b.HEIC").write_bytes(b"heic")
    with caplog.at_level(logging.WARNING):
        data = load(str(folder))
    assert data.class_names == ("cat", "dog")
    assert np.bincount(data.y).tolist() == [3, 2]
    assert "cat: 2 files are no images and are not read" in caplog.text


def with_text_chunks(file):
    info = PngInfo()
    info.add_itxt("comment", "0" * 2**27, zip=True)
    Image.fromarray(np.zeros((2, 2, 3), np.uint8)).save(file, pnginfo=info)


BAD_IMAGES = {
    "too many pixels": lambda f: Image.new("1", (13_400, 13_400)).save(f, compress_level=1),
    "text chunks": with_text_chunks,
    "a broken header": lambda f: f.write_bytes(b"P6\n2 x\n255\n" + bytes(12)),
    "cut": lambda f: f.write_bytes(picture(f).read_bytes()[:60]),
}


@pytest.mark.parametrize("name", BAD_IMAGES)
def test_an_image_that_cannot_be_read_is_one_line(name, tmp_path):
    folder = pictures(tmp_path / "set")
    BAD_IMAGES[name](folder / "dog" / ("9.ppm" if "header" in name else "9.png"))
    with pytest.raises(
        UsageError, match=r"dog/9\.p[np][gm]: cannot be read, it is damaged"
    ) as error:
        load(str(folder))
    assert "\n" not in str(error.value)


# --- archives of arrays --------------------------------------------------------------------------


def npz(file, **members):
    """Members as bytes, whatever they hold."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)


def header(shape):
    text = (
        repr({"descr": "<f4", "fortran_order": False, "shape": shape}).ljust(117).encode() + b"\n"
    )
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def encrypted(file):
    np.savez(file, x=np.ones((2, 2)), y=[0, 1])
    content = bytearray(file.read_bytes())
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        start = content.find(mark)
        content[start + place] |= 1
    file.write_bytes(content)


BAD_ARCHIVES = {
    "a header of 10^12 rows": (
        lambda f: npz(f, x=header((10**12, 3)) + bytes(24), y=header((2,)) + bytes(8)),
        "a.npz: reading it takes more memory",
    ),
    "a foreign member": (lambda f: npz(f, x=b"text"), "a.npz: x is no array"),
    "encrypted": (encrypted, "a.npz: cannot be read.*encrypted"),
}


@pytest.mark.parametrize("name", BAD_ARCHIVES)
def test_a_bad_archive_is_one_line(name, tmp_path):
    write, words = BAD_ARCHIVES[name]
    write(tmp_path / "a.npz")
    with pytest.raises(UsageError, match=words) as error:
        load(tmp_path / "a.npz")
    assert "\n" not in str(error.value)


# --- TFDS ----------------------------------------------------------------------------------------


def write_image_set(root):
    import tensorflow_datasets as tfds

    features = {
        "image": tfds.features.Image(shape=(8, 8, 3)),
        "label": tfds.features.ClassLabel(num_classes=2),
    }
    examples = [
        {"image": RNG.integers(0, 256, (8, 8, 3), dtype=np.uint8), "label": row % 2}
        for row in range(4)
    ]
    prepared_tfds(root, "small", "1.0.0", features, {"train": examples, "test": examples})
    return root / "small"


@pytest.mark.parametrize("key", ["pythonClassName", "python_class_name", "type"])
@pytest.mark.parametrize("is_nested", [False, True])
def test_a_class_outside_tfds_is_not_imported(key, is_nested, tmp_path, monkeypatch):
    folder = write_image_set(tmp_path)
    (tmp_path / "hostile.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    file = next(folder.rglob("features.json"))
    described = json.loads(file.read_text())
    target = described
    if is_nested:
        target = next(iter(described["featuresDict"]["features"].values()))
    target[key] = "hostile.Feature"
    file.write_text(json.dumps(described))
    with pytest.raises(
        UsageError, match=rf"{key}=.hostile.Feature. is outside tensorflow_datasets"
    ):
        load(folder.name, root=tmp_path)


@pytest.mark.parametrize("name", ["features.json", "small-test.array_record-00000-of-00001"])
def test_a_fifo_among_its_files_is_one_line(name, tmp_path):
    file = write_image_set(tmp_path) / "1.0.0" / name
    ANY["a FIFO"](file, None)
    says(partial(load, "small", root=tmp_path), f"{name}: not a regular file")


# --- tables --------------------------------------------------------------------------------------


@pytest.mark.parametrize("lines", ["null\n", 'null\n{"f": 1, "label": 2}\n', "[1]\n", "1\n", ""])
def test_json_lines_that_begin_with_no_object_are_one_line(lines, tmp_path):
    """pyarrow crashes if the first value is null."""
    (tmp_path / "a.jsonl").write_text(lines)
    says(partial(load, tmp_path / "a.jsonl"), "its first line is no JSON object")


def test_a_link_to_nothing_among_the_files_of_a_table_is_one_line(tmp_path):
    write_parquet(tmp_path / "train-0.parquet", image_table(range(6), [0, 1] * 3))
    (tmp_path / "train-1.parquet").symlink_to("nothing")
    says(partial(load, tmp_path), "train-1.parquet: cannot be read.*FileNotFoundError")


# --- all readers ---------------------------------------------------------------------------------


def embeddings(folder):
    folder.mkdir()
    np.save(folder / "a.npy", RNG.normal(size=(9, 3)))
    np.savez(folder / "b.npz", RNG.normal(size=(9, 3)))
    (folder / "labels.csv").write_text("label\n" + "a\nb\n" * 9)
    return folder


def packed(folder):
    y = np.arange(8) % 2
    return pack([(RNG.normal(size=(8, 3)), y)] * 2, folder, test=(np.ones((8, 3)), y))


def arrays(folder):
    folder.mkdir()
    np.savez(folder / "a.npz", x=RNG.normal(size=(9, 3)), y=np.arange(9) % 3)
    return folder


def table(folder):
    folder.mkdir()
    rows = "".join(f"{row},2024-01-0{row + 1},t{row % 2},{row % 3}\n" for row in range(9))
    (folder / "a.csv").write_text(f"f,day,kind,label\n{rows}")
    with gzip.open(folder / "b.csv.gz", "wt") as file:
        file.write(f"f,day,kind,label\n{rows}")
    frame = pandas.read_csv(folder / "a.csv")
    frame.to_feather(folder / "c.feather")
    frame.to_feather(folder / "e.arrow", compression="uncompressed")
    frame.to_json(folder / "d.jsonl", orient="records", lines=True)
    return folder


def parquet(folder):
    columns = {"f": RNG.normal(size=9), "kind": list("abcabcabc")}
    write_parquet(folder / "a" / "a.parquet", columns | {"label": list("xyzxyzxyz")})
    write_parquet(folder / "b" / "b.parquet", image_table(range(6), [0, 1] * 3))
    return folder


TABLES = ("a.csv", "b.csv.gz", "c.feather", "d.jsonl", "e.arrow")
SOURCES = {  # makes a folder; what is loaded, and with which root
    "npz": (arrays, lambda folder: [(folder / "a.npz", None)]),
    "table": (table, lambda folder: [(folder / name, None) for name in TABLES]),
    "parquet": (parquet, lambda folder: [(folder / "a", None), (folder / "b", None)]),
    "png": (pictures, lambda folder: [(str(folder), None)]),
    "embeddings": (embeddings, lambda folder: [(str(folder), None)]),
    "tfds": (lambda folder: write_image_set(folder).parent, lambda folder: [("small", folder)]),
    "packed": (packed, lambda folder: [(str(folder), None)]),
}


def try_damages(source, kinds, tmp_path):
    """Damage one file of a source by each of these kinds: the source is read, or refused in one line."""
    make, loaded = SOURCES[source]
    whole = make(tmp_path / "whole")
    for number, kind in enumerate(kinds):
        folder = shutil.copytree(whole, tmp_path / f"damaged-{number}")
        files = sorted(file for file in folder.rglob("*") if file.is_file())
        ANY[kind](files[number % len(files)], np.random.default_rng(number))
        for name, root in loaded(folder):
            found = says_or_reads(partial(load, name, root=root))
            assert isinstance(found, Dataset | None)
        shutil.rmtree(folder)


@pytest.mark.parametrize("source", SOURCES)
def test_damaged_files_are_a_data_set_or_one_line(source, tmp_path):
    try_damages(source, ANY, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES)
def test_many_damaged_files(source, tmp_path):
    kinds = ("cut", "flipped", "spliced", "zeroed", "noise", "a line less")
    try_damages(source, kinds * 50, tmp_path)


def test_a_mistake_in_a_readers_code_is_a_line_that_names_the_place_and_a_users_own_keeps_its_traceback(
    tmp_path, monkeypatch
):
    from jaxfed.data.readers import tables

    (tmp_path / "a.csv").write_text("f,label\n1,a\n2,b\n")
    monkeypatch.setattr(tables, "Table", lambda *_: {}["nothing"])
    with pytest.raises(UsageError, match=r"cannot be read.*\(KeyError: 'nothing', tables.py line"):
        load(tmp_path / "a.csv")
    monkeypatch.setitem(READERS, "mine", lambda: {}["nothing"])
    with pytest.raises(KeyError):
        load("mine")
