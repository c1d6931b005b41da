"""Folders of small Vision Transformers with random weights, as Hugging Face lays them out."""

import json

import jax
import numpy as np
from flax import nnx
from safetensors.numpy import save_file

from jaxfed.models import vision_transformer as transformers

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
