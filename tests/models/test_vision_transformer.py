"""Vision Transformers from folders: the numbers of `transformers`, images as it prepares them, bad folders.

`vision_transformers.json` has features by `transformers` of the folders that `write_encoder` writes. Where it
is installed (requirements-peers.txt), a test computes them again.
"""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
import refusals
from flax import nnx
from safetensors.numpy import load_file, save_file

from jaxfed.data.features import pretrained_features
from jaxfed.models import MODELS
from jaxfed.models import vision_transformer as transformers
from jaxfed.models.encoders import find_encoder
from jaxfed.models.head import dense_head
from jaxfed.models.trainable import partly_trained
from jaxfed.models.vision_transformer import network, read_form, read_images, read_state

_SIZES = {
    **{"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2},
    **{"image_size": 28, "patch_size": 7},
}
_PLAIN = _SIZES | {"intermediate_size": 12}
_DINO = _SIZES | {"mlp_ratio": 2}
CONFIGS = {
    "vit": {"model_type": "vit", **_PLAIN},
    "vit_mae": {"model_type": "vit_mae", **_PLAIN},
    "dinov2": {"model_type": "dinov2", **_DINO},
    "dinov2_swiglu": {"model_type": "dinov2", "use_swiglu_ffn": True, **_DINO},
    "dinov2_registers": {"model_type": "dinov2_with_registers", "num_register_tokens": 3, **_DINO},
    "dinov3": {"model_type": "dinov3_vit", "num_register_tokens": 2, **_PLAIN},
    "dinov3_gated": {
        **{"model_type": "dinov3_vit", "use_gated_mlp": True, "hidden_act": "silu", **_PLAIN}
    },
    "clip": {"model_type": "clip", "vision_config": _PLAIN},
    "clip_vision": {"model_type": "clip_vision_model", **_PLAIN},
    "siglip": {"model_type": "siglip", "vision_config": _PLAIN},
    "siglip_vision": {"model_type": "siglip_vision_model", **_PLAIN},
}
WITH_A_BATCH = ("cls_token", "register_tokens", "position_embeddings", "probe")
PREFIXES = {"clip": "vision_model.", "siglip": "vision_model."}
PREPROCESSOR = {
    **{"do_resize": True, "size": {"shortest_edge": 32}, "resample": 3},
    **{"do_center_crop": True, "crop_size": {"height": 28, "width": 28}},
    **{"do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True},
    **{"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]},
}


def write_encoder(folder, kind, **preprocessor):
    """Write a folder; weights are drawn in the order of their names."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIGS[kind]))
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR | preprocessor))
    form, rng = transformers.read_form(folder), np.random.default_rng(0)
    prefix = PREFIXES.get(CONFIGS[kind]["model_type"], "")
    init = transformers.network(form, None).init
    shapes = {}
    for leaf, variable in nnx.to_flat_state(jax.eval_shape(init, jax.random.key(0))):
        tensor, shape = transformers.tensor_of(form, leaf), variable.shape
        if leaf[-1] == "kernel":
            shape = tuple(shape[axis] for axis in {2: (1, 0), 4: (3, 2, 0, 1)}[len(shape)])
        elif tensor.name.rpartition(".")[2] in WITH_A_BATCH:
            shape = (1, *shape)
        elif tensor.name.endswith("class_embedding"):
            shape = shape[1:]
        shapes[prefix + tensor.name] = tensor.parts * shape[0], *shape[1:]
    tensors = {}
    for name in sorted(shapes):
        drawn = 0.3 * rng.standard_normal(shapes[name])
        is_norm = "norm" in name.split(".")[-2] if "." in name else False
        tensors[name] = (drawn + (is_norm and name.endswith("weight"))).astype(np.float32)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


TABLE = Path(__file__).with_name("vision_transformers.json")
SIZES = [(28, 28), (42, 35)]  # the positions are of 28 x 28


def images(size):
    return np.random.default_rng(1).normal(size=(2, *size, 3)).astype(np.float32)


@pytest.mark.parametrize("kind", CONFIGS)
def test_features_are_those_of_transformers(kind, tmp_path):
    """Of images as large as positions are, one kind: there all use their positions as they are."""
    folder = write_encoder(tmp_path, kind)
    model = network(read_form(folder), None)
    state = read_state(folder, jax.eval_shape(model.init, jax.random.key(0)))
    for size, expected in zip(SIZES, json.loads(TABLE.read_text())[kind], strict=True):
        if size != SIZES[0] or kind == "vit":
            found = jax.jit(model.features)(state, images(size))
            np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("kind", CONFIGS)
def test_transformers_has_the_numbers_of_the_table(kind, tmp_path):
    pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    found = transformers_features(torch, kind, write_encoder(tmp_path, kind))
    for one, expected in zip(found, json.loads(TABLE.read_text())[kind], strict=True):
        np.testing.assert_allclose(one, expected, atol=1e-5)


def transformers_features(torch, kind, folder):
    """Features of each size; what weights a folder lacks, no feature depends on."""
    import transformers

    name = kind.partition("_")[0]
    of_a_pair = {"clip": "CLIPVisionModel", "siglip": "SiglipVisionModel"}
    model_class = getattr(transformers, of_a_pair.get(name, "AutoModel"))
    options = {"mask_ratio": 0.0} if kind == "vit_mae" else {}
    model, report = model_class.from_pretrained(folder, output_loading_info=True, **options)
    allowed = ("mask_token", "register_tokens", "pooler.dense.weight", "pooler.dense.bias")
    assert all(key.endswith(allowed) for key in report["missing_keys"])
    assert not report["unexpected_keys"]
    options = {} if name in ("dinov2", "dinov3") else {"interpolate_pos_encoding": True}
    for size in SIZES:
        with torch.no_grad():
            pixels = torch.tensor(images(size).transpose(0, 3, 1, 2))
            out = model.eval()(pixels, **options)
        tokens = out.last_hidden_state
        if kind == "vit_mae":
            yield tokens[:, 1:].mean(1).numpy()
        else:
            yield (tokens[:, 0] if kind == "vit" else out.pooler_output).numpy()


PREPARED = {
    "crop": {},
    "grown": {"size": {"shortest_edge": 64}, "crop_size": {"height": 56, "width": 56}},
    "no normalization": {"do_normalize": False, "resample": 1},
    "as they are": {"do_resize": False, "do_center_crop": False},
}


@pytest.mark.parametrize("case", PREPARED)
def test_images_are_prepared_as_the_file_says(case, tmp_path):
    """By Pillow, as `transformers` does it; both round to whole values, at times to the next one."""
    from PIL import Image

    given = PREPROCESSOR | PREPARED[case]
    pixels = np.random.default_rng(0).integers(0, 256, (44, 50, 3), np.uint8)
    image = Image.fromarray(pixels)
    if given["do_resize"]:
        size = given["size"]
        short = size.get("shortest_edge")
        size = (short, short * 50 // 44) if short else (size["height"], size["width"])
        image = image.resize(size[::-1], given["resample"])
    expected = np.asarray(image, np.float64)
    if given["do_center_crop"]:
        wanted = given["crop_size"]["height"]
        top, left = ((side - wanted) // 2 for side in expected.shape[:2])
        expected = expected[top : top + wanted, left : left + wanted]
    expected, unit = expected / 255, 1 / 255
    if given["do_normalize"]:
        expected = (expected - given["image_mean"]) / given["image_std"]
        unit = 1 / 255 / 0.22
    write_encoder(tmp_path, "dinov2", **PREPARED[case])
    found = read_images(tmp_path).prepared(pixels[None])[0]
    np.testing.assert_allclose(found, expected, atol=1.01 * unit)
    assert np.mean(np.abs(found - expected) > 1e-4) < 0.1


def test_features_of_a_folder_are_computed_once_and_grey_is_rgb(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXFED_CACHE", str(tmp_path / "cache"))
    folder = str(write_encoder(tmp_path / "own", "dinov2"))
    grey = np.random.default_rng(0).integers(0, 256, (3, 40, 40, 1), np.uint8)
    encoder = find_encoder(folder)
    expected = jax.jit(encoder.model().features)(
        encoder.read(jax.eval_shape(encoder.model().init, jax.random.key(0))),
        encoder.prepared(np.repeat(grey, 3, axis=-1)),
    )
    found = pretrained_features(grey, network=folder)
    assert (found.shape, encoder.num_features) == ((3, 8), 8)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    monkeypatch.setattr("jaxfed.data.features._extractor", None)
    np.testing.assert_array_equal(pretrained_features(grey, network=folder), found)
    assert len(list((tmp_path / "cache").iterdir())) > 0


def test_a_folder_is_trained_with_a_new_head(tmp_path):
    folder = write_encoder(tmp_path, "dinov2_registers")
    model = MODELS["vit"]((35, 42, 1), 3, folder=str(folder))
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    ones = jax.tree.map(lambda leaf: np.ones(leaf.shape, leaf.dtype), shapes)
    start = read_state(folder, ones, new_head=True)
    assert dense_head(model, "m") == (("head", "kernel"), 8, 3)
    x = images((35, 42))[..., :1]
    expected = jax.jit(model.apply)(start, x)
    for trainable, number in (
        ("norms", 2 * 2 * 2 * 8 + 2 * 8 + 27),
        ("lora", 2 * 2 * (4 * 16 + 48) + 27),
    ):
        part, of = partly_trained(
            model, start, trainable, lora_rank=2, lora_alpha=16.0, lora_factors="both"
        )
        state = of(start)
        assert sum(leaf.size for leaf in jax.tree.leaves(state)) == number
        if trainable == "lora":  # test_trainable compares of other networks all parts
            np.testing.assert_allclose(jax.jit(part.apply)(state, x), expected, atol=1e-5)


def broken(change, kind="dinov2"):
    """Read a folder in which `change` has damaged something."""

    def call():
        folder = write_encoder(Path("own"), kind)
        change(folder)
        encoder = find_encoder("own")
        encoder.read(jax.eval_shape(encoder.model().init, jax.random.key(0)))
        encoder.prepared(np.zeros((1, 30, 30, 3), np.uint8))

    return call


def configured(name="config.json", **changes):
    def change(folder):
        given = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**given, **changes}))

    return change


def tensors(**changes):
    def change(folder):
        path = folder / "model.safetensors"
        found = load_file(path)
        save_file({k: v for k, v in (found | changes).items() if v is not None}, path)

    return change


PREPARING = "preprocessor_config.json"
NORM = "encoder.layer.1.norm2.weight"
FOLDER = "config.preprocessing.network='own': "
test_refused = refusals.table(
    {
        f"{FOLDER}has no model.safetensors": broken(
            lambda folder: (folder / "model.safetensors").unlink()
        ),
        f"{FOLDER}its weights are in several files": broken(
            lambda folder: (folder / "model.safetensors").rename(
                folder / "model.safetensors.index.json"
            )
        ),
        "folder='own': has no config.json; use a folder with config.json, ": lambda: MODELS["vit"](
            (8, 8, 3), 3, folder="own"
        ),
        f"{FOLDER}model_type='bert' cannot be read; readable: vit, ": broken(
            configured(model_type="bert")
        ),
        f"{FOLDER}3 heads, width 8": broken(configured(num_attention_heads=3)),
        f"{FOLDER}own/model.safetensors has 1 missing tensors for this network, first {NORM}": broken(
            tensors(**{NORM: None})
        ),
        f"{FOLDER}own/model.safetensors: {NORM} has shape (9,), expected (8,)": broken(
            tensors(**{NORM: np.zeros(9, np.float32)})
        ),
        f"{FOLDER}own/model.safetensors is not a readable safetensors file": broken(
            lambda folder: (folder / "model.safetensors").write_bytes(b"{}")
        ),
        f"{FOLDER}preprocessor_config.json: crop (99, 99) is larger than": broken(
            configured(PREPARING, crop_size=99)
        ),
        "width=6: vit takes a multiple of 2 heads=8": lambda: MODELS["vit"]((8, 8, 3), 3, width=6),
    }
)
