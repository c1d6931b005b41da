"""LEAF, Fed-ISIC2019 and Mini-ImageNet folders: small ones in the real layouts, whole and broken."""

import json

import numpy as np
import pytest
from PIL import Image

from jaxfed.data import Natural, load, partition
from jaxfed.errors import UsageError

HEADER = "image,MEL,NV,BCC,AK,BKL,DF,VASC,SCC,UNK,target,center,fold,fold2"


def leaf_object(users):
    """What LEAF writes for {user: (x, y)}."""
    return {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {name: {"x": x, "y": y} for name, (x, y) in users.items()},
    }


def write_leaf(folder, **splits):
    """splits: lists of files, each an object or its text; names as LEAF gives them."""
    for split, files in splits.items():
        (folder / split).mkdir(parents=True)
        for number, content in enumerate(files):
            name = f"all_data_{number}_niid_0_keep_0_{split}_9.json"
            text = content if isinstance(content, str) else json.dumps(content)
            (folder / split / name).write_text(text)
    return folder


def characters(rng, count):
    """Images as FEMNIST has them: 784 shares of white."""
    return (rng.integers(256, size=(count, 784)) / 255).tolist()


@pytest.mark.parametrize("split_by", ["sample", "user"])
def test_leaf(tmp_path, split_by):
    rng = np.random.default_rng(0)
    a, b, c = characters(rng, 3), characters(rng, 2), characters(rng, 1)
    train = [
        leaf_object({"f0001_41": (a, [61, 0, 5]), "f0000_14": (b, [5, 0])}),
        leaf_object({"f0002_00": (c, [61])}),
    ]
    tested = "f0000_14" if split_by == "sample" else "f0009_99"
    folder = write_leaf(tmp_path / "f", train=train, test=[leaf_object({tested: (c, [5])})])
    data = load(folder)
    assert (data.x.dtype, data.x.shape, data.x_test.shape) == (
        np.uint8,
        (6, 28, 28, 1),
        (1, 28, 28, 1),
    )
    np.testing.assert_allclose(data.x.reshape(6, 784) / 255, [*a, *b, *c], atol=1e-7)
    assert data.class_names == ("0", "5", "61")
    np.testing.assert_array_equal(data.y, [2, 0, 1, 1, 0, 2])
    np.testing.assert_array_equal(data.client_id, [1, 1, 1, 0, 0, 2])
    np.testing.assert_array_equal(data.client_id_test, [0 if split_by == "sample" else 3])
    scheme = Natural(data.client_id, data.client_id_test)
    dealt = partition(data.y, scheme=scheme, new_y=data.y_test)
    assert [len(new) for new in dealt.new] == ([1, 0, 0] if split_by == "sample" else [0, 0, 0, 1])


def test_leaf_vectors_and_empty_users(tmp_path):
    """What is no image stays as it is; users without examples do not disturb."""
    users = {"a": ([[0.5, -1], [2, 3]], [0, 1]), "b": ([], []), "c": ([[1.25, 0]], [1])}
    data = load(write_leaf(tmp_path / "v", train=[leaf_object(users)], test=[leaf_object(users)]))
    assert data.x.dtype == np.float32
    np.testing.assert_array_equal(data.x, [[0.5, -1], [2, 3], [1.25, 0]])
    np.testing.assert_array_equal(data.client_id, [0, 0, 1])


def test_leaf_images_that_turn_out_to_be_none(tmp_path):
    """A user with 0 and 1 only looks like an image; the next one tells."""
    users = {"a": ([[0, 1] * 32], [0]), "b": ([[0.1234] * 64], [1])}
    data = load(write_leaf(tmp_path / "v", train=[leaf_object(users)], test=[leaf_object(users)]))
    assert (data.x.dtype, data.x.shape) == (np.float32, (2, 64))
    np.testing.assert_allclose(data.x[1], 0.1234, rtol=1e-6)


GOOD = leaf_object({"a": ([[1.5, 2]], [0])})


def save_image(file, level, size=(8, 8), mode="RGB"):
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, (level,) * 3 if mode == "RGB" else level).save(file)


def write_isic(folder, rows):
    """rows: image, target, center, fold. Image i is 300 x 224, red left, green center, blue right."""
    folder.mkdir()
    lines = [HEADER]
    for name, target, center, fold in rows:
        one_hot = ",".join(str(float(c == target)) for c in range(9))
        lines.append(f"{name},{one_hot},{target},{center},{fold},{fold}_{center}")
        pixels = np.zeros((224, 300, 3), np.uint8)
        pixels[:, :50, 0] = pixels[:, 250:, 2] = 255
        pixels[:, 50:250, 1] = 255
        pixels[:12] = pixels[-12:] = 255
        path = folder / "ISIC_2019_Training_Input_preprocessed" / f"{name}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(path, quality=95, subsampling=0)
    (folder / "train_test_split").write_text("\n".join(lines) + "\n")
    return folder


ROWS = [
    ("ISIC_0065613", 1, 0, "train"),
    ("ISIC_0012669_downsampled", 7, 4, "train"),
    ("ISIC_0063710", 2, 0, "test"),
    ("ISIC_0032511", 0, 5, "train"),
]


def test_fed_isic2019(tmp_path):
    data = load(write_isic(tmp_path / "isic", ROWS))
    assert (data.x.shape, data.x_test.shape) == ((3, 200, 200, 3), (1, 200, 200, 3))
    np.testing.assert_array_equal(data.y, [1, 7, 0])
    np.testing.assert_array_equal(data.y_test, [2])
    np.testing.assert_array_equal(data.client_id, [0, 1, 2])
    np.testing.assert_array_equal(data.client_id_test, [0])
    assert (data.num_classes, data.class_names[7]) == (8, "SCC")
    # The middle 200 x 200 of 300 x 224 is the green part, without the white rows.
    assert (data.x[..., 1] > 200).all()
    assert (data.x[:, :, 8:-8, ::2] < 60).mean() > 0.9
    small = load(tmp_path / "isic", image_size=50)
    assert small.x.shape == (3, 50, 50, 3)
    images = tmp_path / "isic" / "ISIC_2019_Training_Input_preprocessed"
    files = [images / f"{name}.jpg" for name, _, _, fold in ROWS if fold == "train"]
    np.testing.assert_array_equal(small.encoder(files), small.x)
    np.testing.assert_array_equal(data.encoder(files), data.x)


def _edit(folder, old, new):
    table = folder / "train_test_split"
    table.write_text(table.read_text().replace(old, new))


BAD_ISIC = {
    "no table": (lambda f: (f / "train_test_split").unlink(), "copy it there from FLamby"),
    "no image": (
        lambda f: next((f / "ISIC_2019_Training_Input_preprocessed").glob("*65613*")).unlink(),
        "train_test_split: 1 of its 3 images are missing, first .*ISIC_0065613.jpg",
    ),
    "no column": (lambda f: _edit(f, "center,", ""), "no column center; it has image, MEL"),
    "class": (
        lambda f: _edit(f, ",1,0,train", ",9,0,train"),
        "split: cannot be read.*KeyError: 9",
    ),
    "center": (
        lambda f: _edit(f, ",7,4,train", ",7,x,train"),
        "train_test_split: cannot be read.*'x'",
    ),
    "fold": (
        lambda f: _edit(f, ",2,0,test", ",2,0,val"),
        "split: cannot be read.*'val'",
    ),
    "half a line": (
        lambda f: _edit(f, ",0,5,train,train_5", ""),
        "train_test_split: cannot be read",
    ),
}


@pytest.mark.parametrize(("damage", "message"), BAD_ISIC.values(), ids=BAD_ISIC)
def test_broken_fed_isic2019_is_named_in_one_line(tmp_path, damage, message):
    folder = write_isic(tmp_path / "isic", ROWS)
    damage(folder)
    with pytest.raises(UsageError, match=message) as error:
        load(folder)
    assert "\n" not in str(error.value)


def write_few_shot(folder, layout):
    """Three classes of two images, one class a split: as tables over images/, or as folders."""
    for split, name, level in (("train", "n01", 10), ("val", "n02", 20), ("test", "n03", 30)):
        rows = [f"{name}0000000{i}.jpg,{name}" for i in range(2)]
        for row in rows:
            image = row.split(",")[0]
            where = folder / "images" if layout == "tables" else folder / split / name
            save_image(where / image, level, size=(84, 84))
        if layout == "tables":
            (folder / f"{split}.csv").write_text("\n".join(["filename,label", *rows]) + "\n")
    return folder


@pytest.mark.parametrize("layout", ["tables", "folders"])
def test_few_shot_splits_become_one_set(tmp_path, layout):
    data = load(write_few_shot(tmp_path / "mini", layout))
    assert (data.x.shape, data.x_test.shape) == ((6, 84, 84, 3), (0, 84, 84, 3))
    np.testing.assert_array_equal(data.y, [0, 0, 1, 1, 2, 2])
    np.testing.assert_array_equal(data.x[:, 0, 0, 0], [10, 10, 20, 20, 30, 30])
    assert data.class_names == ("n01", "n02", "n03")


def test_mini_imagenet_by_class(tmp_path):
    """All classes in one folder, and XCLP's split of every class between train and test."""
    for name in ("n01", "n02"):
        for i in range(3):
            save_image(tmp_path / "plain" / name / f"{i}.jpg", 10 * i, size=(84, 84))
            split = "test" if i == 2 else "train"
            save_image(tmp_path / "split" / split / name / f"{i}.jpg", 10 * i, size=(100, 90))
    plain, split = load(tmp_path / "plain"), load(tmp_path / "split", image_size=84)
    assert (len(plain.y), len(plain.y_test)) == (6, 0)
    assert (len(split.y), len(split.y_test)) == (4, 2)
    assert split.x.shape[1:] == plain.x.shape[1:] == (84, 84, 3)
    np.testing.assert_array_equal(split.x_test[:, 0, 0, 0], [20, 20])


BAD_TABLES = {
    "columns": (lambda f: (f / "train.csv").write_text("a,b\n1,2\n"), "no column filename, label"),
    "missing": (lambda f: (f / "images" / "n0100000001.jpg").unlink(), "1 of its 2 images are"),
    "bytes": (lambda f: (f / "val.csv").write_bytes(b"\xff\xfe\x00"), "val.csv: cannot be read"),
    "no images": (
        lambda f: [(f / f"{s}.csv").write_text("") for s in ("train", "val", "test")],
        "no",
    ),
}


@pytest.mark.parametrize(("damage", "message"), BAD_TABLES.values(), ids=BAD_TABLES)
def test_broken_tables_are_named_in_one_line(tmp_path, damage, message):
    folder = write_few_shot(tmp_path / "mini", "tables")
    damage(folder)
    with pytest.raises(UsageError, match=message) as error:
        load(folder)
    assert "\n" not in str(error.value)


def test_sets_are_found_in_the_data_root(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXFED_DATA", str(tmp_path))
    write_few_shot(tmp_path / "mini_imagenet", "tables")
    assert len(load("mini_imagenet").y) == 6
    np.savez(tmp_path / "letters.npz", x=np.ones((2, 3)), y=np.arange(2), writer=np.array([4, 2]))
    np.testing.assert_array_equal(load("letters.npz").client_id, [1, 0])
    assert load("letters.npz").client_names == ("2", "4")
    for name, origin in (("femnist", "LEAF's ./preprocess.sh"), ("fed_isic2019", "FLamby's")):
        with pytest.raises(UsageError, match=f"{name}.: no such folder.*{origin}.*JAXFED_DATA"):
            load(name)
