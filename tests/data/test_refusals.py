"""What readers, partitions, packed folders and encoders refuse."""

import json
import os
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import refusals
from hf_files import class_label, described, image_table, png, write_parquet
from PIL import Image

from jaxfed.data import (
    Classes,
    Dirichlet,
    Labels,
    Natural,
    Subclasses,
    Table,
    class_counts,
    load,
    pack,
    partition,
)
from jaxfed.data.dataset import Dataset
from jaxfed.data.encoding import RowEncoding, encoder_from, encoder_of
from jaxfed.federation.clients import Federation

IDS, TENS = np.arange(100) % 4, np.repeat(np.arange(10), 10)


def split(scheme=None, *values, y=TENS, **given):
    """Four clients of 100 examples of ten classes."""

    def call():
        made = scheme(*values) if isinstance(scheme, type) else scheme
        others = {} if scheme is None else {"scheme": made}
        partition(y, **{"num_clients": 4} | others | given)

    return call


def dealt(**labels):
    return lambda: split(labels=Labels(**labels))()


KNOWN = np.where(np.arange(100) < 30, np.arange(100) % 3, -1)
PARTITIONS = {
    "...scheme='dirichlet': use ... Dirichlet()": split("dirichlet"),
    "...Dirichlet.alpha=0": partial(Dirichlet, 0),
    "...Labels.number=101: use 0 to 100": dealt(number=101),
    "...Labels.fraction=1.5...0 to 1": dealt(fraction=1.5),
    "...Labels.per_class=3: 12 labels of class 0 in all, which has 10 examples": dealt(per_class=3),
    "...Labels.clients=9: use 0": split(Natural, IDS, num_clients=None, labels=Labels(clients=9)),
    "...Classes.per_client=2...8 of 10": split(Classes, 2),
    "...num_clients=5: the data have 4 client ids; use 4": split(Natural, IDS, num_clients=5),
    "...entries do not match": split(Natural, IDS[1:]),
    "...entries do not match  new": split(Natural, IDS, IDS[1:], num_clients=None, new_y=TENS),
    "...shares from 0 on": split(Table, np.full((2, 10), np.nan)),
    "...min_size=1: Subclasses fixes the client of each example; use 0": split(
        Subclasses, TENS, min_size=1
    ),
    "...'both', 'labeled', 'unlabeled', 'independent'": split(skew="none"),
    "...y: class -2; use ... from 0 on, or -1 for an unknown": split(y=KNOWN - 1),
    "...new_y: class -1; use classes from 0 on": split(y=KNOWN[:30], new_y=KNOWN),
    "...y: float64 of shape [2]; use": lambda: class_counts([0.5, 1.0], [np.arange(2)], 10),
}


def csv(text, name="a.csv", **options):
    def call():
        content = text if isinstance(text, bytes) else text.encode()
        Path(name).write_bytes(content)
        load(name, **options)

    return call


def lines(*rows, **options):
    return csv("\n".join(rows) + "\n", **options)


FRACTIONS = tuple(f"{row},{1.37 * row}" for row in range(1, 50))
NAMES, F = tuple(f"name{row},{row % 2}" for row in range(101)), "f,label"
TABLES = {
    "label_key: ...out of acid, sugar, quality": lines("acid,sugar,quality", "1,2,3", "2,3,4"),
    "...did you mean 'Outcome'": lines("Outcome,f", "1,2", "2,3", label_key="outcome"),
    "client_key='file': no such column in ...; the columns are": lines(F, "1,a", client_key="file"),
    "drop='g': no such column in ...; the columns are f, label": lines(F, "1,a", "2,b", drop=["g"]),
    "...column 'f', line 3: 'red' is not a number": lines(F, "1,a", "red,b"),
    **{
        f"...column 'f', line 3: '{cells[1]}' is not a number; write numbers with a decimal": lines(
            "f;label", *(f"{cell};{row % 2}" for row, cell in enumerate(cells))
        )
        for cells in (
            *(
                ("", "1,5", "2,5"),
                ("2", "1,500", "3"),
                ("NA", "-1.234,5", "1,0"),
                ("", "3 %", "10%"),
            ),
            *(("", "0x1F", "0x10"), ("", "31.01.2024", "01.02.2024"), ("", "01/31/2024", "2/1/24")),
        )
    },
    "...'name' has 101 different texts; up to 100": lines("name,label", *NAMES),
    "...line 3: 'inf' is not a number": lines("g,f,label", "1,2,0", "3,inf,1"),
    "...'label': labels are a quantity, 1.37 has a fraction": lines(F, *FRACTIONS),
    "...labels are a quantity, 150 labels are 150 different numbers": lines(
        F, *(f"{row},{7 * row}" for row in range(150))
    ),
    "...column 'client', line 3: '' names no client": lines("f,label,client", "1,a,x", "2,b,"),
    "...a.csv: cannot be read...Row #2: Expected 2 columns, got 3": lines("1,2", "1,2,3"),
    "...cannot be read...iconv": csv("f,label\n1,weiß\n2,rot\n".encode("windows-1252")),
}


def beside(*rows, good=("f,g,label", "1,2,a", "3,4,b"), folders=("s",), **options):
    """Tables of one name, `b.csv` with these rows."""

    def call():
        for folder in folders:
            Path(folder).mkdir()
            for name, own in (("a", good), ("b", rows or good)):
                Path(folder, f"{name}.csv").write_text("\n".join(own) + "\n")
        load("*/*.csv", **options)

    return call


SITES = {
    "...b.csv: columns ['f', 'h', 'label'] where ...a.csv has ['f', 'g', 'label']; all": beside(
        "f,h,label", "1,2,a"
    ),
    "...b.csv: column 'g', line 3: 'x' is not a number": beside("f,g,label", "1,2,a", "1,x,a"),
    "client_key='file': two files are named a": beside(folders=("n", "s"), client_key="file"),
    "data set 'sights/*.csv': no such file (": lambda: load("sights/*.csv"),
}


def arrays(drop=(), client_key=None, **change):
    def call():
        given = {"x": np.ones((3, 2)), "y": np.arange(3), **change}
        np.savez("a.npz", **{name: value for name, value in given.items() if name not in drop})
        load("a.npz", client_key=client_key)

    return call


TESTED = {"x_test": np.ones((2, 2)), "y_test": np.array([0, 1])}
UNREAD = ("X", "x_holdout", "Unlabeled_X", "images", "testing", "label_test", "xtest")
ARRAYS = {
    **{
        f"...array {n} is not read; leave it out, or": arrays(**{n: np.ones((3, 2))})
        for n in UNREAD
    },
    "...client_id has type float64; use integers or names": arrays(client_id=[0, np.nan, 1]),
    "...labels or clients have shape (3, 2)": arrays(y=np.ones((3, 2), int)),
    "...1 test examples have no label": arrays(**TESTED | {"y_test": np.array([0, -1])}),
    "...two classes are named 'cat'": arrays(y=[0, 1, 1], class_names=["cat", "cat"]),
    "...labels 0..4294967296 are not all numbers of the 2 classes": arrays(
        y=np.array([0, 1, 2**32]), class_names=np.array(["a", "b"])
    ),
    "...holds Python objects; ...astype(str)": arrays(y=np.array(["a", "b", "c"], object)),
    "...no array y_test; ... kinds_of": arrays(x_test=np.ones(3), kinds_of=[1]),
    "...no array x and no array y; there are a; use the names x and y": arrays(
        drop="xy", a=np.zeros(2)
    ),
    "...a.npz: not an .npz file": csv("no archive", "a.npz"),
    "client_key='place': no array place in ...; there are x, y": arrays(client_key="place"),
    "...test: some examples are uint8 and some float32": arrays(
        x=np.ones((3, 2), np.uint8), x_test=np.ones((3, 2)) / 255, y_test=np.arange(3)
    ),
}


def beside_table(*options, **files):
    """Arrays, and `a.csv` of two rows."""

    def call():
        Path("f").mkdir()
        Path("f/a.csv").write_text("label,g\na,1\nb,2\n")
        for name, array in files.items():
            np.save(f"f/{name}.npy", array)
        load("f", **dict(options))

    return call


BESIDE = {
    "f: 3 examples and 2 rows of the table in the train split; row i": beside_table(
        a=np.ones((3, 2))
    ),
    "f: arrays of float32 and float64; use one type for all": beside_table(
        a=np.ones((1, 2)), b=np.ones((1, 2), np.float32)
    ),
    "data set 'f', train: 1 of 2 examples have values that are nan": beside_table(
        a=[[np.nan], [1.0]]
    ),
}


def parquet(columns, **options):
    return lambda: load(write_parquet(Path("a.parquet"), columns), **options)


def pictures(second, **more):
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    images = pa.array([{"bytes": png(1), "path": "1.png"}, second], kind)
    return parquet({"image": images, "label": ["x", "y"], **more})


def two_files(second):
    def call():
        write_parquet(Path("s/0.parquet"), {"f": [1, 2], "label": [0, 1]})
        write_parquet(Path("s/1.parquet"), second)
        load("s")

    return call


ARROW = {
    "...has neither numbers nor texts": parquet({"f": [1, 2], "label": [[1], [2]]}),
    "...a.parquet: column 'image', row 1": pictures({"bytes": png(1)[:40], "path": "2.png"}),
    "...'image', row 1: holds no image; write": pictures(None),
    "...each of the columns 'image', 'more' is a whole example; leave all but one out": pictures(
        {"bytes": png(1), "path": ""}, more=[b"1", b"2"]
    ),
    "...'v' of type list<...int64> has neither": parquet({"v": [[1], [3]], "label": ["x", "y"]}),
    "...'s' of type struct<a: int64> has neither": parquet({"s": [{"a": 1}] * 2, "label": [0, 1]}),
    "...a.parquet: 0 rows; use a table": parquet(pa.table({"f": [1], "label": [0]}).slice(1)),
    "...a.parquet': cannot be read": parquet(
        pa.table({"f": [1, 2], "label": [0, 1]}).replace_schema_metadata({"huggingface": "[1]"})
    ),
    "...labels 0..2 are not all numbers of the 2 classes": parquet(
        described(pa.table({"f": [1, 2], "label": [0, 2]}), {"label": class_label("x", "y")})
    ),
    "...cannot be read...Field 0: f has incompatible types: int64 vs string": two_files(
        {"f": ["1", "2"], "label": [0, 1]}
    ),
}

TABLE = "size;color;id;note;client;label\n1.5;red;7;a;x;no\nNA; green ;8;b;x;yes\n"
TABLE += "-2e3;?;9;c;y;no\n0.1;red;10;a;y;yes\n"


def encoder(dataset):
    """The data set's encoder, written and read."""
    return encoder_from(
        json.loads(json.dumps(RowEncoding(encoder_of(dataset)).described()["encoder"]))
    )


def cells(row=None, **change):
    def call():
        Path("t.csv").write_text(TABLE)
        own = encoder(load("t.csv", drop=("note",)))
        own({"size": 1, "color": "red"} | change if row is None else row)

    return call


def without_color(row):
    return cells({"size": 1, **row})


def gap():
    Path("t.csv").write_text(TABLE)
    RowEncoding(encoder(load("t.csv", drop=("note",))))({"size": None, "color": "red"})


def rows(shape, dtype, given):
    x = np.arange(2 * np.prod(shape)).reshape(2, *shape).astype(dtype)
    y = np.array([0, 1], np.int32)
    data = Dataset("a", x, y, x[:0], y[:0], 2, ("0", "1"))
    return lambda: encoder(data)(given)


def image(given):
    def call():
        table = write_parquet(Path("a.parquet"), image_table([3, 5], [1, 0], size=(5, 4)))
        encoder(load(table))(given)

    return call


def folder_image(given):
    def call():
        for name in ("cat", "dog"):
            Path("f", name).mkdir(parents=True)
            Image.new("RGB", (8, 9)).save(f"f/{name}/0.png")
        with mock.patch.dict(os.environ, JAXFED_CACHE="cache"):
            encoder(load("f"))(given)

    return call


ENCODED = {
    "...row 0: column 'size' has 'big'; give a finite number": cells(size="big"),
    "...has 'rot', which is not in ...choose one of '?', 'green'": cells(color="rot"),
    "...did you mean 'green'": cells(color="gren"),
    "...has no column 'color', did you mean 'colour'?; give size, color": without_color(
        {"colour": "red"}
    ),
    "...row 0: column 'size' has no value, and had one in every": gap,
    "...rows have shape [2, 4]; give an array of numbers": rows((3,), float, np.zeros((2, 4))),
    "...an array of uint8 ...: some examples are": rows((2, 2, 1), np.uint8, np.zeros((1, 2, 2))),
    "...an image of bytes: holds no image": image({"path": "x"}),
    "...no_such.png: there is no such file": folder_image("no_such.png"),
    "...rows are a int; give a path, a PIL image": folder_image(3),
    "...rows have shape [3, 3]": folder_image([np.zeros((3, 3), np.uint8)]),
    "...a PIL image: mode 'I;16' has more than 8 bits": folder_image(Image.new("I;16", (8, 8))),
}

RNG = np.random.default_rng(0)


def pair(count, labeled=1.0):
    x, y = RNG.integers(0, 255, (count, 3, 2)).astype(np.uint8), RNG.integers(0, 4, count)
    return x, np.where(RNG.random(count) < labeled, y, -1)


CLIENTS = [pair(count, 0.5) for count in (5, 0, 9, 1, 4)]
TEST = pair(6)


def packed(clients=CLIENTS, **given):
    def call():
        try:
            with mock.patch("jaxfed.data.packing._AT_ONCE", 1):
                pack(clients, "p", **given)
        finally:
            assert os.listdir() == []

    return call


def more(*pairs):
    return [*CLIENTS, *pairs]


PACKED = {
    "...one client is needed at least": packed([]),
    "...uint8": packed([(np.zeros((2, 3, 2)), [0, 1])], test=TEST),
    "...clients[5] is ndarray; use a pair": packed(more(pair(3)[0])),
}


def opened(damage=lambda folder: None, reading=Federation.open_packed, **given):
    def call():
        folder = pack(CLIENTS, "p", **given or {"test": TEST})
        damage(folder)
        reading(folder)

    return call


def edited(change):
    def edit(folder):
        header = json.loads((folder / "packed.json").read_text())
        change(header)
        (folder / "packed.json").write_text(json.dumps(header))

    return opened(edit)


def cut(name):
    return opened(lambda folder: os.truncate(folder / name, (folder / name).stat().st_size - 1))


def hostile(labels, shape=None):
    """Other labels, or their shape by their header."""

    def write(folder):
        file = folder / "y.npy"
        np.save(file, labels, allow_pickle=True)
        if shape:
            given = f"({len(labels)},), }}"
            said = f"({shape},), }}".ljust(len(given) + 14)
            content = file.read_bytes().replace(given.encode() + b" " * 14, said.encode())
            file.write_bytes(content)

    return opened(write)


FOLDERS = {
    "...no packed.json in it": opened(lambda folder: (folder / "packed.json").unlink()),
    "...format 1, and this version ... reads 3": edited(lambda header: header.update(format=1)),
    "...cannot be read": edited(lambda header: header.pop("checksum")),
    "...do not fit together": edited(lambda header: header.update(num_classes=9)),
    "...p: cannot be read, it is damaged ...mmap length": cut("x.npy"),
    "...p: cannot be read, it is damaged ...expected 100 bytes got 99": cut("y.npy"),
    "cannot read p/counts.npy": opened(lambda folder: (folder / "counts.npy").unlink()),
    "...Object arrays cannot be loaded": hostile(np.array([print], object)),
    "...p: reading it takes more memory": hostile(np.zeros(9, np.int32), 10**15),
    "...a config draws these ...open_packed": opened(reading=load, validation=TEST),
}


X, Y = np.zeros((2, 3), np.float32), np.zeros(2, np.int32)


def whole(**change):
    good = {"name": "a", "x": X, "y": Y, "x_test": X[:0], "y_test": Y[:0]}
    return lambda: Dataset(**{**good, "num_classes": 1, "class_names": ("0",), **change})


def clients(x, y=(0, 1), *others, **given):
    return lambda: Federation.from_clients([(x, y), *others], **given)


def from_root(name, **environment):
    def call():
        Path("empty").mkdir()
        Path("broken/class").mkdir(parents=True)
        Path("broken/class/a.png").write_bytes(b"no image")
        Path("a.xlsx").write_bytes(b"PK")
        Path("dangling/class").mkdir(parents=True)
        Path("dangling/class/a.png").symlink_to("nowhere")
        with mock.patch.dict(os.environ, {"JAXFED_CACHE": "cache", **environment}):
            load(name, root=None if environment else ".")

    return call


BYTES = X.astype(np.uint8)
LOADED = {
    "...train: labels of shape (1,)": whole(y=Y[:1]),
    "...one an example is needed  id": whole(client_id=Y[:1]),
    "...2 class names for 1 classes; use one a class": whole(class_names=("0", "1")),
    "from_clients: ...labels of type datetime64": clients(X, np.array([0, 1], "datetime64[D]")),
    "...did you mean 'digits'": from_root("digit"),
    "...dataset_info.json...JAXFED_DATA...download_and_prepare": from_root("no_such_set"),
    "...a.xlsx': ...a file must end in ....csv...save a spreadsheet as .csv": from_root("./a.xlsx"),
    "...no images": from_root("./empty"),
    "...a.png: cannot be read": from_root("./broken"),
    "$JAXFED_DATA='nowhere': no such folder": from_root("fashion_mnist", JAXFED_DATA="nowhere"),
    "label_key='a': does not apply to data set 'digits'": lambda: load("digits", label_key="a"),
}

test_partitions = refusals.table(PARTITIONS)
test_tables = refusals.table(TABLES | SITES)
test_arrays = refusals.table(ARRAYS | BESIDE)
test_arrow = refusals.table(ARROW)
test_encoders = refusals.table(ENCODED)
test_folders = refusals.table(PACKED | FOLDERS)
test_loaded = refusals.table(LOADED)
