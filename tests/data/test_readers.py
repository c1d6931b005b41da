"""Every reader as one table: files, options of `load`, and the data set that they give."""

import gzip
import io
import json
import logging
from decimal import Decimal
from functools import partial

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest
from data_roots import needs_data, root_of
from hf_files import class_label, described, image_table
from PIL import Image
from tfds_files import prepared_tfds

from jaxfed.data import load
from jaxfed.data.readers import named
from jaxfed.errors import UsageError

NAN = np.nan
NA_VALUES = [  # of pandas
    *("#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "1.#IND", "1.#QNAN", "-NaN", "-nan"),
    *("<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"),
]
PUBLISHED = named.PUBLISHED


def write(folder, files):
    """Write files by the kind of their content."""
    for name, content in files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if callable(content):
            content(place)
        elif isinstance(content, pandas.DataFrame):
            content.to_parquet(place, index=False)
        elif isinstance(content, pa.Table):
            pa.parquet.write_table(content, place)
        elif isinstance(content, np.ndarray) and place.suffix == ".npy":
            np.save(place, content)
        elif isinstance(content, np.ndarray):
            Image.fromarray(content).save(place, **({"quality": 95} if name.endswith("g") else {}))
        elif isinstance(content, dict):
            np.savez(place, **content) if place.suffix == ".npz" else place.write_text(
                json.dumps(content)
            )
        else:
            place.write_bytes(content if isinstance(content, bytes) else content.encode())


def grey(value, size=(4, 4)):
    return np.full(size, value, np.uint8)


def images(*values, folder="", size=(4, 4), color=False, ending="png"):
    """Images of one value each, named by it; `folder` is their class's."""
    shape = (*size, 3) if color else size
    return {f"{folder}/{value}.{ending}": np.full(shape, value, np.uint8) for value in values}


def lines(*rows):
    return "\n".join(rows) + "\n"


def frame(**columns):
    return pandas.DataFrame(columns)


def hub(*rows, names=("cat", "dog")):
    """A table of one feature and a ClassLabel."""
    columns = {"f": list(rows), "label": [row % 2 for row in rows]}
    return described(pa.table(columns), {"label": class_label(*names)})


SPLIT_FILES = {
    "train-0.csv": lines("id,f,kind,label,client", "0,1,red,b,x", "1,,red,a,x"),
    "train-1.csv": lines("id,f,kind,label,client", "2,3,blue,b,z"),
    "test.csv": lines("id,f,kind,label,client", "0,,green,a,y", "1,9,red,a,z"),
    "validation.csv": lines("id,f,kind,label,client", "0,1,red,a,x"),
    "trainers.csv": lines("name", "Ann"),
}
HUB_FILES = {
    "train-00000-of-00002.parquet": hub(5, 4),
    "train-00001-of-00002.parquet": hub(3, 2),
    "test-00000-of-00001.parquet": hub(7),
}
HUB = {"x": [[5], [4], [3], [2]], "y": [1, 0, 1, 0], "x_test": [[7]], "y_test": [1]}
HUB |= {"class_names": ("cat", "dog")}
NORTH = lines("age,color,label,client", "1,red,a,n", ",blue,b,n")
SOUTH = lines("age,color,label,client", "3,green,a,s", "4,red,,s")
DELIMITED = '"acid";"sugar";"Class"\n1.5;2;5\n2.5;3;6\n3.5;4;5\n'
SPELLINGS = frame(size=range(6), color=["red", "", "NA", "None", "?", "red"], label=list("ababab"))
SPELLED = {
    "features": ["size", "color=", "color=red"],
    "x": [[0, 0, 1], [1, 1, 0], [2, 1, 0], [3, 1, 0], [4, 1, 0], [5, 0, 1]],
    "said": "columns of text become one feature a text (0 or 1): color (2)",
}
NO_FEATURES = "columns that are no features: '"
LABELED = "f,label\n1,{}\n2,{}\n3,7\n"

FORMS = pa.table(
    {
        **{
            "f": [1.0, None, 2.5],
            "kind": ["b", "a", "b"],
            "day": ["2024-01-31", "2024-02-01", None],
        },
        **{"label": ["ill", None, "well"], "site": ["n", "s", "s"]},
    }
)


def csv(text, expected, **options):
    return {"a.csv": text}, "a.csv", options, expected


# name -> files, what is loaded, options of `load`, and the data set
TABLES = {
    "semicolons": csv(DELIMITED, {"x": [[1.5, 2], [2.5, 3], [3.5, 4]]}),
    "a mark of byte order": csv(
        "q,f,label\n1,2,3\n2,3,4\n".encode("utf-8-sig"),
        {"x": [[2, 3], [3, 4]], "class_names": ("1", "2")},
        label_key="q",
    ),
    "numbers without a label": csv(
        "f,label\n1,10\n2,\n3,9\n4, \n5,NaN\n",
        {"y": [1, -1, 0, -1, -1], "class_names": ("9", "10")},
    ),
    **{
        f"a label {label!r}": csv(
            LABELED.format(7, label), {"class_names": tuple(sorted(["7", label]))}
        )
        for label in ("--5", "²", str(2**63))
    },
    **{
        f"labels {first} and {second}": csv(LABELED.format(first, second), {"num_classes": number})
        for first, second, number in (("01", "1", 3), ("-0", "0", 3), ("3.0", "3", 2))
    },
    "equal names in Unicode": csv(
        "f,label,client\n1,caf\u00e9,\u00e9\n2,cafe\u0301,e\u0301\n3,tea,x\n",
        {"class_names": ("caf\u00e9", "tea"), "client_id": [1, 1, 0]},
    ),
    "clients": csv(
        "label,client_id,f\nx,7,1\ny,9,2\nx,7,3\n", {"client_id": [0, 1, 0], "x": [[1], [2], [3]]}
    ),
    "texts": csv(
        "size,color,label\n1,red,a\n2,blue,b\n3,,a\n4,red,b\n",
        {"x": [[1, 0, 0, 1], [2, 0, 1, 0], [3, 1, 0, 0], [4, 0, 0, 1]], "said": "color (3)"},
    ),
    "missing texts": csv(SPELLINGS.to_csv(index=False), SPELLED),
    "two labels": csv(
        "f,Class,target\n1,7,0\n2,8,1\n2,9,1\n",
        {"said": "column 'Class' is the label, and 'target' a feature"},
    ),
    "spellings of numbers": csv("f;label\n1e3;0\n-.5;1\n2.;0\n", {"x": [[1000], [-0.5], [2]]}),
    **{
        f"no features in {text.partition(chr(10))[0]}": csv(
            text, {"width": width, "said": NO_FEATURES if is_said else None}
        )
        for text, width, is_said in (
            ("id,f,label\n1,5,a\n2,5,b\n", 1, True),
            ("Patient ID,f,label\nP7,5,a\nP9,6,b\n", 1, True),
            (",f,label\n0,5,a\n1,6,b\n", 1, True),  # the index of pandas
            ("f,label,,\n5,a,,\n6,b,,\n", 1, True),  # a spreadsheet's empty columns
            ("id ,f,label\n1,5,a\n1,6,b\n", 2, False),  # it tells no rows apart
            ("age,f,label\n1,5,a\n2,6,b\n", 2, False),
        )
    },
    "a column left out": csv("f,note,label\n1,1.5,a\n2,x,b\n", {"x": [[1], [2]]}, drop=["note"]),
    "splits by name": (
        SPLIT_FILES,
        *("*.csv", {}),
        {
            "x": [[1, 0, 0, 1], [NAN, 0, 0, 1], [3, 1, 0, 0]],
            "x_test": [[NAN, 0, 1, 0], [9, 0, 0, 1]],
            **{"y": [1, 0, 1], "y_test": [0, 0], "client_id_test": [1, 2]},
            "said": "trainers.csv",
        },
    ),
    **{
        f"the test split is {name}": (
            {"Training.csv": "f,label\n1,a\n2,b\n", f"{name}.csv": "f,label\n3,a\n"},
            *("*.csv", {}, {"y": [0, 1], "y_test": [0]}),
        )
        for name in ("Testing", "val")
    },
    "each file a client": (
        {"south.csv": "f,label\n0,a\n1.5,b\n3,a\n", "north.east.csv": "f,label\n0,a\n1.5,b\n"},
        *("*.csv", {"client_key": "file"}),
        {
            "client_names": ("north.east", "south"),
            "client_id": [0, 0, 1, 1, 1],
            "x": [[0], [1.5], [0], [1.5], [3]],
        },
    ),
    "dictionaries, decimals, truth": (
        {
            "a.parquet": pa.table(
                {
                    "kind": pa.array(["red", None, "blue"]).dictionary_encode(),
                    "price": pa.array([Decimal("1.50"), None, Decimal("2.25")]),
                    "label": pa.array([True, False, True]),
                }
            )
        },
        *("a.parquet", {}),
        {"x": [[0, 0, 1, 1.5], [1, 0, 0, NAN], [0, 1, 0, 2.25]], "class_names": ("False", "True")},
    ),
    "names of classes": (
        {
            "a.parquet": described(
                pa.table({"shape": [1, 0, 1], "label": [0, 1, 0]}),
                {"shape": class_label("round", "flat"), "label": class_label("cat", "dog")},
            )
        },
        *("a.parquet", {}, {"x": [[1, 0], [0, 1], [1, 0]], "class_names": ("cat", "dog")}),
    ),
    **{
        f"the same as {ending}": (
            {f"a.{ending}": partial(write, FORMS)},
            *(f"a.{ending}", {"client_key": "site"}),
            {
                "x": [[1, 0, 1, 19753], [NAN, 1, 0, 19754], [2.5, 0, 1, NAN]],
                **{"y": [0, -1, 1], "class_names": ("ill", "well"), "client_names": ("n", "s")},
                "features": ["f", "kind=a", "kind=b", "day"],
            },
        )
        for ending, write in (
            ("csv", pa.csv.write_csv),
            ("parquet", pa.parquet.write_table),
            ("feather", pa.feather.write_feather),
            ("arrow", lambda table, file: pa.feather.write_feather(table, file, "uncompressed")),
            (
                "jsonl",
                lambda table, file: table.to_pandas().to_json(file, orient="records", lines=True),
            ),
        )
    },
    "two numeric types": (
        {
            "s/0.parquet": frame(f=[1, 2], label=[0, 1]),
            "s/1.parquet": frame(f=[1.5, 2], label=[0, 1]),
        },
        *("s", {}, {"x": [[1], [2], [1.5], [2]]}),
    ),
    **{
        f"Hugging Face, {place}": (
            {f"{place}/{name}": each for name, each in HUB_FILES.items()},
            *("s", {}, HUB),
        )
        for place in ("s", "s/data")
    },
    "Hugging Face, a pattern": (HUB_FILES, "*.parquet", {}, HUB),
    **{
        f"Hugging Face, {train} and {test}": (
            {
                f"s/{split}/0000.parquet": hub(*rows)
                for split, rows in ((train, (1, 2)), (test, (4,)), ("validation", (6, 7)))
            },
            *("s", {}, {"x": [[1], [2]], "x_test": [[4]]}),
        )
        for train, test in (("train", "test"), ("Training", "TEST"))
    },
    "folders of a pattern": (
        {
            f"s/{place}/a.csv": f"f,label\n{value},a\n{value + 1},b\n"
            for value, place in enumerate(("Train", "TEST", "val"))
        },
        *("s/*/*.csv", {}, {"x": [[0], [1]], "x_test": [[1], [2]], "said": "files of no split"}),
    ),
    "images in Parquet": (
        {
            "s/train-0.parquet": image_table([3, 5, 7], [1, 0, -1]),
            "s/test-0.parquet": image_table([9], [1]),
        },
        *("s", {}),
        {"pixels": [3, 5, 7], "y": [1, 0, -1], "pixels_test": [9], "form": (np.uint8, 4, 4, 1)},
    ),
}
Z3, TESTED = np.arange(3), {"x_test": np.ones((1, 2)), "y_test": np.zeros(1, int)}
SITES = {
    "x": np.ones((3, 2)),
    "y": Z3,
    "client_id": np.zeros(3, int),
    "site": np.array(list("bab")),
}


def npz(expected, options=None, **arrays):
    return {"a.npz": arrays}, "a.npz", options or {}, expected


ARRAYS = {
    "numbers as names": npz(
        {"y": [0, 1, 0], "class_names": ("3", "5"), "client_id": [1, 1, 0]},
        **{"x": np.ones((3, 2)), "y": np.array([3, 5, 3]), "writer": np.array(list("bba"))},
    ),
    "MedMNIST": npz(
        {"form": (np.uint8, 5, 5, 1), "y": [1, 0], "y_test": [0]},
        train_images=np.ones((2, 5, 5), np.uint8),
        train_labels=np.array([[1], [0]]),
        test_images=np.ones((1, 5, 5), np.uint8),
        test_labels=np.array([[0]]),
    ),
    "clients by a key of an array": npz({"client_id": [1, 0, 1]}, {"client_key": "site"}, **SITES),
    "clients of a test set": npz(
        {"client_id_test": [2]},
        {"client_key": "site"},
        **{**SITES, **TESTED, "site_test": np.array(["c"])},
    ),
    "validation beside a test set": npz(
        {"y_test": [0, 1], "said": "not read: x_validation, y_validation"},
        x=Z3,
        y=Z3,
        **{f"{kind}_{split}": np.arange(2) for kind in "xy" for split in ("test", "val")},
    ),
    **{
        f"unlabeled: {name}": npz({"y": expected}, x=np.ones((4, 2)), y=np.array(y), **more)
        for name, y, more, expected in (
            ("nan", [3, NAN, 5, NAN], {}, [0, -1, 1, -1]),
            ("no name", ["b", "", "a", ""], {}, [1, -1, 0, -1]),
            ("-1, names", [1, -1, 1, 0], {"class_names": ["no", "yes"]}, [1, -1, 1, 0]),
            ("-1, one other and nan", [-1, 1, NAN, 1], {}, [0, 1, -1, 1]),
            ("-1, one named", [-1, 1, -1, 1], {"class_names": ["no", "yes"]}, [-1, 1, -1, 1]),
        )
    },
}
TWO_SIZES = images(10, folder="f/a", size=(6, 6)) | images(20, folder="f/a", size=(8, 12))


def splits_of(train, test):
    """One grey image of each class in folders of these names."""
    places = (f"f/{train}/a", f"f/{train}/b", f"f/{test}/b")
    return {f"{place}/0.png": grey(number) for number, place in enumerate(places)}


IMAGES = {
    "grey": (
        images(1, 2, folder="f/a") | images(3, folder="f/b"),
        "f",
        {},
        {"pixels": [1, 2, 3], "y": [0, 0, 1]},
    ),
    "grey and color": (
        images(7, folder="f/no") | images(1, folder="f/yes", color=True),
        *("f", {}, {"pixels": [7, 1], "form": (np.uint8, 4, 4, 3), "class_names": ("no", "yes")}),
    ),
    "the median size": (TWO_SIZES, "f", {}, {"form": (np.uint8, 7, 7, 1)}),
    **{
        f"{train} and {test}": (
            splits_of(train, test),
            *(
                "f",
                {},
                {"class_names": ("a", "b"), "pixels": [0, 1], "pixels_test": [2], "y_test": [1]},
            ),
        )
        for train, test in (("TRAIN", "VALID"), ("Training", "Testing"))
    },
    **{
        f"a class named {name}": (
            images(1, folder="f/Bus") | images(2, folder=f"f/{name}"),
            *("f", {}, {"class_names": ("Bus", name)}),
        )
        for name in ("Train", "test")
    },
    "validation beside a test folder": (
        splits_of("train", "test") | images(1, folder="f/val/a") | images(2, folder="f/valid/b"),
        *("f", {}, {"pixels_test": [2], "said": "not read: val, valid"}),
    ),
    "few-shot splits": (
        images(1, folder="f/train/n1")
        | images(2, folder="f/val/n2")
        | images(3, folder="f/test/n3"),
        *("f", {}, {"pixels": [1, 2, 3], "y": [0, 1, 2], "x_test": np.zeros((0, 4, 4, 1))}),
    ),
    "brain_mri, copies": (
        {
            **images(10, 20, folder="brain_mri/no"),
            "brain_mri/no/3.png": np.full((4, 4, 3), 10, np.uint8),
            **images(20, 30, 40, folder="brain_mri/yes"),
            "brain_mri/yes/50.png": grey(30),
        },
        *("brain_mri", {"image_size": 12}),
        {
            **{"pixels": [10, 20, 20, 30, 40], "y": [0, 0, 1, 1, 1], "form": (np.uint8, 12, 12, 1)},
            "said": "2 of 7 images are copies and are left out",
        },
    ),
    **{
        f"pneumonia{inner}, val": (
            {
                name: image
                for split, values in (("train", (10, 20)), ("val", (30, 40)), ("test", (50, 60)))
                for folder, value in zip(("NORMAL", "PNEUMONIA"), values, strict=True)
                for name, image in images(
                    value, folder=f"pneumonia{inner}/{split}/{folder}"
                ).items()
            },
            *("pneumonia", {}),
            {
                "pixels": [10, 20, 30, 40],
                "y": [0, 1, 0, 1],
                "pixels_test": [50, 60],
                "y_test": [0, 1],
            },
        )
        for inner in ("/chest_xray",)
    },
    "pneumonia_mnist, val": (
        {
            "pneumonia_mnist/pneumoniamnist.npz": {
                f"{split}_{kind}": np.tile(np.uint8(rows)[:, None, None], (1, 28, 28))
                if kind == "images"
                else np.uint8(rows)[:, None] % 2
                for split, rows in (("train", [0, 1, 2]), ("val", [3, 4]), ("test", [5, 6]))
                for kind in ("images", "labels")
            }
        },
        *("pneumonia_mnist", {}),
        {"pixels": range(5), "y": [0, 1, 0, 1, 0], "pixels_test": [5, 6], "y_test": [1, 0]},
    ),
}


def tfds_set(name, version, classes, sizes, size=4):
    """A writer of a prepared set: image i of all splits is filled with i, and has label i % C."""

    def call(place):
        import tensorflow_datasets as tfds

        features = {
            "image": tfds.features.Image(shape=(size, size, 3)),
            "label": tfds.features.ClassLabel(names=list(classes)),
        }
        splits, first = {}, 0
        for split, number in sizes.items():
            splits[split] = [
                {
                    "image": np.full((size, size, 3), i, np.uint8),
                    "label": -1 if split == "unlabelled" else i % len(classes),
                }
                for i in range(first, first + number)
            ]
            first += number
        prepared_tfds(place.parent, name, version, features, splits)

    return {f"{name} {version}": call}


TINY = tfds_set("tiny", "1.0.0", ("cat", "dog"), {"train": 5, "test": 2})
TFDS = {
    "TFDS": (
        *(TINY, "tiny", {}),
        {
            **{"pixels": range(5), "y": [0, 1, 0, 1, 0], "pixels_test": [5, 6], "y_test": [1, 0]},
            **{"class_names": ("cat", "dog"), "form": (np.uint8, 4, 4, 3)},
        },
    ),
    "the newest version": (
        tfds_set("tiny", "1.9.0", "ab", {"train": 3})
        | tfds_set("tiny", "1.10.0", "ab", {"train": 4}),
        *("tiny", {}, {"pixels": range(4)}),
    ),
    "SVHN without extra": (
        tfds_set("svhn", "3.1.0", "0123456789", {"train": 12, "test": 3, "extra": 4}),
        *("svhn", {}, {"pixels": range(12), "pixels_test": [12, 13, 14]}),
    ),
    "STL-10 with unlabelled": (
        tfds_set("stl10", "1.0.0", "abc", {"train": 4, "test": 3, "unlabelled": 2}),
        *("stl10", {}),
        {"pixels": [0, 1, 2, 3, 7, 8], "y": [0, 1, 2, 0, -1, -1], "pixels_test": [4, 5, 6]},
    ),
}


def isic(*rows):
    """A table of image, target, center, fold; images are 300 x 224, of red, green and blue stripes."""
    pixels = np.zeros((224, 300, 3), np.uint8)
    pixels[:, :50, 0] = pixels[:, 250:, 2] = pixels[:, 50:250, 1] = 255
    text = lines("image,target,center,fold", *(",".join(map(str, row)) for row in rows))
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "jpeg", quality=95, subsampling=0)
    folder = "fed_isic2019/ISIC_2019_Training_Input_preprocessed"
    return {f"{folder}/{row[0]}.jpg": stream.getvalue() for row in rows} | {
        "fed_isic2019/train_test_split": text
    }


ISIC = isic(("a", 1, 0, "train"), ("b", 7, 4, "train"), ("c", 2, 0, "test"), ("d", 0, 5, "train"))
ISICS = {
    "Fed-ISIC2019": (
        *(ISIC, "fed_isic2019", {}),
        {
            **{"form": (np.uint8, 200, 200, 3), "y": [1, 7, 0], "y_test": [2]},
            **{"client_id": [0, 4, 5], "client_id_test": [0], "num_classes": 8},
        },
    ),
    "Fed-ISIC2019, small": (
        ISIC,
        "fed_isic2019",
        {"image_size": 50},
        {"form": (np.uint8, 50, 50, 3)},
    ),
}
WINES = '"fixed acidity";"volatile acidity";"citric acid";"residual sugar";"chlorides";"free sulfur dioxide";'
WINES += '"total sulfur dioxide";"density";"pH";"sulphates";"alcohol";"quality"\n'
PERSON = {
    **{"age": "39", "workclass": "State-gov", "fnlwgt": "77516", "education": "Bachelors"},
    **{"education-num": "13", "marital-status": "Never-married", "occupation": "Adm-clerical"},
    **{"relationship": "Not-in-family", "race": "White", "sex": "Male", "capital-gain": "2174"},
    **{"capital-loss": "0", "hours-per-week": "40", "native-country": "United-States"},
    "income": "<=50K",
}


def wines(red=(1, 2, 1), white=(2, 3, 3, 4), header=WINES):
    """Wines whose values are all the same number; a number that comes again is a repeated row."""
    return {
        f"wine_quality/winequality-{kind}.csv": head
        + "".join(";".join([f"{value}"] * 12) + "\n" for value in values)
        for kind, values, head in (("red", red, header), ("white", white, WINES))
    }


def adults(train, test=({},)):
    """The person above, changed in some columns, a row each."""
    rows = [
        "".join(", ".join((PERSON | change).values()) + end + "\n" for change in split)
        for split, end in ((train, ""), (test, "."))
    ]
    return {
        "adult/adult.data": rows[0] + "\n",
        "adult/adult.test": "|1x3 Cross validator\n" + rows[1] + "\n",
    }


def mushrooms(*rows):
    return {"mushroom/agaricus-lepiota.data": lines(*map(",".join, rows))}


def forests(name="covtype.data.gz", classes=(1, 7, 2)):
    rows = lines(*(",".join([str(c + 10)] * 54 + [str(c)]) for c in classes)).encode()
    return {f"covertype/{name}": gzip.compress(rows) if name.endswith(".gz") else rows}


JOB, PLAIN = np.eye(14), [39, 2, 77516, 13, 3, 0, 0, 1, 2174, 0, 40, 1]
GAIN, HOURS = np.float32((3 * 2174 + 99999) / 4), (3 * 40 + 99) / 4
ADULTS = adults(
    train=[
        {},
        {"relationship": "Wife", "sex": "Female", "income": ">50K", "race": "Black"},
        {"workclass": "?", "occupation": "?", "native-country": "?", "race": "Other"},
        {"capital-gain": "99999", "hours-per-week": "99", "native-country": "Cuba"},
    ],
    test=[{"income": ">50K", "capital-gain": "99999"}, {"occupation": "Transport-moving"}],
)
UCI = {
    "wine_quality, repeated rows": (
        *(wines(), "wine_quality", {}),
        {"x": np.repeat([[1], [2], [2], [3], [4]], 12, axis=1), "y": [0, 0, 1, 1, 1]},
    ),
    "adult": (
        *(ADULTS, "adult", {}),
        {
            "x": [
                [*PLAIN, *JOB[0]],
                [39, 2, 77516, 13, 3, 1, 1, 0, 2174, 0, 40, 1, *JOB[0]],
                [39, 1, 77516, 13, 3, 0, 0, 1, 2174, 0, 40, 1, *JOB[9]],
                [39, 2, 77516, 13, 3, 0, 0, 1, GAIN, 0, HOURS, 0, *JOB[0]],
            ],
            "x_test": [[*PLAIN[:8], GAIN, *PLAIN[9:], *JOB[0]], [*PLAIN, *JOB[13]]],
            **{"y": [0, 1, 0, 0], "y_test": [1, 0]},
        },
    ),
    "mushroom, ranks": (
        mushrooms(*(f"{c}{v * 15}p{v * 6}" for c, v in ("px", "e?", "eb"))),
        *("mushroom", {}, {"x": np.repeat([[2], [0], [1]], 21, axis=1), "y": [1, 0, 0]}),
    ),
    **{
        name: (
            *(forests(name), "covertype", {}),
            {
                **{"x": np.repeat([[11], [17], [12]], 54, axis=1), "y": [0, 6, 1]},
                **{"num_classes": 7, "said": "3 rows of Covertype's 581012"},
            },
        )
        for name in ("covtype.data", "covtype.part.data.gz")
    },
}
CASES = TABLES | ARRAYS | IMAGES | TFDS | ISICS | UCI


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXFED_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(named, "PUBLISHED", {})  # files of a few rows count as whole


def check(data, expected, caplog):
    special = {
        "pixels": lambda: data.x[:, 1, 1, 0],
        "pixels_test": lambda: data.x_test[:, 1, 1, 0],
        "features": lambda: data.names["features"],
        "width": lambda: data.x.shape[1],
    }
    for name, value in expected.items():
        if name == "said":
            assert (value in caplog.text) if value else not caplog.messages
        elif name == "form":
            assert (data.x.dtype, *data.x.shape[1:]) == value
        elif isinstance(value, tuple) or value is None:
            assert getattr(data, name) == value
        else:
            found = special[name]() if name in special else getattr(data, name)
            np.testing.assert_array_equal(found, value)


@pytest.mark.parametrize("case", CASES)
def test_a_reader(case, tmp_path, caplog, monkeypatch):
    files, name, options, expected = CASES[case]
    root = tmp_path / "root"
    write(root, files)
    monkeypatch.setenv("JAXFED_DATA", str(root))
    with caplog.at_level(logging.WARNING):
        data = load(name, **options)
    check(data, expected, caplog)


def test_the_center_of_fed_isic2019(tmp_path):
    """The middle 200 x 200 of 300 x 224 is the green part; the encoder crops as the reader does."""
    write(tmp_path, ISIC)
    for size in (None, 50):
        data = load("fed_isic2019", root=tmp_path, image_size=size)
        assert (data.x[..., 1] > 200).mean() > 0.95
        assert (data.x[:, :, 8:-8, ::2] < 60).mean() > 0.85
        files = tmp_path / "fed_isic2019" / "ISIC_2019_Training_Input_preprocessed"
        found = data.encoder([files / f"{name}.jpg" for name in "abd"])
        np.testing.assert_array_equal(found, data.x)


def test_gaps_become_medians_of_rows_to_train_on_and_indicators(tmp_path, caplog):
    (tmp_path / "a.csv").write_text("f,g,h,label\n1,2,5,a\n?,3,5,b\n2,NA,5,a\n900,4,5,b\n9, ,5,a\n")
    with caplog.at_level("WARNING"):
        data = load(tmp_path / "a.csv")
    assert "3 of 5 rows miss a value" in caplog.text
    gaps = data.gaps(np.array([True, True, True, False, True]))
    expected = [
        *([1, 2, 5, 0, 0], [2, 3, 5, 1, 0], [2, 2.5, 5, 0, 1]),
        *([900, 4, 5, 0, 0], [9, 2.5, 5, 0, 1]),
    ]
    np.testing.assert_array_equal(gaps.filled(data.x), expected)
    with pytest.raises(UsageError, match="feature 2 has no value in the rows to train on"):
        data.gaps(np.array([False, False, True, False, True]))


ODD = {  # columns of numbers, and files around them, that pandas reads as numbers
    "round trips": lines("f,label", "0.1,a", "0.30000000000000004,b", "1e-45,a", "5e-324,b"),
    "quotes": lines('"f","g, h",label', '"1.5","-2",a', '"2.5","3",b'),
    "a delimiter in quotes": lines("f,note,label", '1,"x,y",a', '2,"say ""hi""",b'),
    "a line break in quotes": lines("f,note,label", '1,"x', 'y",a', "2,z,b"),
    "spaces": lines("f,label", " 1.5 ,a", "2 ,b"),
    "spellings of numbers": lines("f,label", "+1,a", "1.e2,b", ".5,a", "-1E-3,b", "007,a", "-0,b"),
    "missing": lines("f,label", "1,a", ",b", *(f"{word},a" for word in NA_VALUES), "2,b"),
    "seconds": lines("f,label", *(f"{1_700_000_000 + s},{'ab'[s % 2]}" for s in range(60))),
    "integers of 64 bits": lines("f,label", f"{2**63 - 1},a", f"{-(2**63)},b", f"{2**64},a"),
    "empty lines": "\nf,label\n\n1,a\n\n2,b\n\n",
    "no last line end": "f,label\n1,a\n2,b",
    "line ends of Windows": "f,label\r\n1,a\r\n2,b\r\n",
    "old line ends": "f,label\r1,a\r2,b\r",
    "a mark of byte order": "\ufefff,label\n1,a\n2,b\n",
    "an index": pandas.DataFrame({"f": [1, 2], "label": ["a", "b"]}).to_csv(),
    "columns without a value": "f,g,label,,\n1,,a,,\n2,,b,,\n",
}


@pytest.mark.parametrize("name", ODD)
def test_numbers_of_an_odd_file_are_those_of_pandas(name, tmp_path):
    (tmp_path / "a.csv").write_bytes(ODD[name].encode())
    data = load(tmp_path / "a.csv")
    frame = pandas.read_csv(tmp_path / "a.csv")
    place = data.names["features"].index("f")
    np.testing.assert_array_equal(data.x[:, place], frame["f"].astype(float).astype(data.x.dtype))


SPLIT = "fed_isic2019/train_test_split"
MEDICAL = IMAGES["pneumonia_mnist, val"][0]["pneumonia_mnist/pneumoniamnist.npz"]


def without(files, *words):
    """The files without those whose names have one of these words."""
    return {n: content for n, content in files.items() if not any(word in n for word in words)}


def edited(files, name, old, new):
    return files | {name: files[name].replace(old, new)}


# What a publisher's folder is refused with -> files, what is loaded.
REFUSED = {
    "copy it there from FLamby's": (without(ISIC, "split"), "fed_isic2019"),
    "split: 1 of its 4 images are missing, first .*a.jpg": (
        without(ISIC, "/a.jpg"),
        "fed_isic2019",
    ),
    "split: cannot be read.*KeyError": (edited(ISIC, SPLIT, "center,", ""), "fed_isic2019"),
    "split: cannot be read": (edited(ISIC, SPLIT, ",0,5,train", ""), "fed_isic2019"),
    r"no images in no/; needed are .*kaggle": (images(1, folder="brain_mri/yes"), "brain_mri"),
    r"pneumoniamnist\.npz: cannot be read.*val_images": (
        {"pneumonia_mnist/pneumoniamnist.npz": without(MEDICAL, "val_images")},
        "pneumonia_mnist",
    ),
    r"red\.csv: cannot be read.*'x'": (wines(red=(1, "x")), "wine_quality"),
    "its columns are not fixed acidity": (wines(header=WINES.replace("pH", "ph")), "wine_quality"),
    r"adult\.data: column 'sex' has 'male'; choose one of 'Female'": (
        adults([{"sex": "male"}]),
        "adult",
    ),
    "label 7 is not a class": (forests(classes=(1, 8)), "covertype"),
    r"no images; .* by a pattern, '.*\*.csv'": ({"f/north.csv": "a,label\n1,x\n2,y\n"}, "./f"),
    r"f/test.csv: a test .* split so": (
        {f"f/{n}.csv": "a,label" for n in ("b", "test")},
        "f/*.csv",
    ),
    "f/val: a test split by": (images(1, folder="f/a") | images(2, folder="f/val/a"), "./f"),
    **{
        f"{name}.: no such folder.*{origin}.*JAXFED_DATA": ({"file": ""}, name)
        for name, origin in (
            *(("femnist", "flwrlabs/femnist"), ("fed_isic2019", "FLamby's")),
            *(("mini_imagenet", "a folder of images a class"), ("adult", r"archive\.ics")),
        )
    },
}
CUT = {  # at the end of a line: a file of another number of rows than published
    "agaricus-lepiota.data": (8_124, mushrooms("e" * 23), "mushroom"),
    "covtype.data.gz": (581_012, forests(), "covertype"),
}
REFUSED |= {
    rf"{name}: \d rows, but the published file has {number};": rest
    for name, (number, *rest) in CUT.items()
}


@pytest.mark.parametrize("line", REFUSED)
def test_a_refused_folder(line, tmp_path, monkeypatch):
    files, name = REFUSED[line]
    write(tmp_path, files)
    monkeypatch.setenv("JAXFED_DATA", str(tmp_path))
    if "published" in line:
        monkeypatch.setattr(named, "PUBLISHED", PUBLISHED)
    with pytest.raises(UsageError, match=line) as error:
        load(name, root=tmp_path)
    assert "\n" not in str(error.value)


REAL = {  # name -> shape of an example, examples of each class, those of the test split
    "wine_quality": ((12,), [1359, 3961], []),
    "adult": ((26,), [24720, 7841], [12435, 3846]),
    "mushroom": ((21,), [4208, 3916], []),
    "covertype": ((54,), [2942, 6022, 2160, 2160, 2396, 2160, 2160], []),
    "brain_mri": ((150, 150, 1), [87, 141], []),
    "pneumonia_mnist": ((28, 28, 1), [1349, 3883], [234, 390]),
    "digits": ((8, 8, 1), [178, 182, 177, 183, 181, 182, 181, 179, 174, 180], []),
    "breast_cancer": ((30,), [212, 357], []),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=needs_data(name)) for name in list(REAL)[:-2]] + list(REAL)[-2:],
)
def test_a_real_set(name, monkeypatch):
    monkeypatch.setattr(named, "PUBLISHED", PUBLISHED)
    shape, counts, test_counts = REAL[name]
    data = load(name, root=root_of(name))
    assert data.x.shape == (sum(counts), *shape)
    np.testing.assert_array_equal(np.bincount(data.y), counts)
    np.testing.assert_array_equal(np.bincount(data.y_test), test_counts)
