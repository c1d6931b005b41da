"""The networks once more in NumPy and float64: of a state as nested arrays, features and logits."""

import numpy as np


def convolved(x, layer, stride=1, padding=None):
    kernel = layer["kernel"]
    window = len(kernel)
    edge = window // 2 if padding is None else padding
    x = np.pad(x, ((0, 0), (edge, edge), (edge, edge), (0, 0)))
    views = np.lib.stride_tricks.sliding_window_view(x, (window, window), axis=(1, 2))
    out = np.einsum("nyxcij,ijco->nyxo", views[:, ::stride, ::stride], kernel, optimize=True)
    return out + layer.get("bias", 0)


def _batch_norm(x, layer, epsilon=1e-5):
    return (x - layer["mean"]) / np.sqrt(layer["var"] + epsilon) * layer["scale"] + layer["bias"]


def _group_norm(x, layer, groups, epsilon):
    grouped = x.reshape(len(x), -1, groups, x.shape[-1] // groups)
    mean, var = (f(grouped, axis=(1, 3), keepdims=True) for f in (np.mean, np.var))
    normal = ((grouped - mean) / np.sqrt(var + epsilon)).reshape(x.shape)
    return normal * layer["scale"] + layer["bias"]


def _weight_norm(layer):
    """The kernel g v / |v|."""
    v = layer["layer"]["kernel"]
    norms = np.sqrt((v**2).sum(axis=tuple(range(v.ndim - 1))))
    return {"kernel": v * layer["gain"] / norms, "bias": layer["layer"]["bias"]}


def pooled(x, size):
    _, height, width, _ = x.shape
    x = x[:, : height // size * size, : width // size * size]
    views = np.lib.stride_tricks.sliding_window_view(x, (size, size), axis=(1, 2))
    return views[:, ::size, ::size].max(axis=(4, 5))


def _dense(x, layer):
    return x @ layer["kernel"] + layer.get("bias", 0)


def _relu(x):
    return np.maximum(x, 0)


def cnn13(w, x, normalize_features=False):
    def unit(x, w, padding):
        z = _batch_norm(convolved(x, _weight_norm(w["linear"]), padding=padding), w["norm"])
        return np.where(z > 0, z, 0.1 * z)

    for stage in ("wide", "middle"):
        for i in range(3):
            x = unit(x, w[stage][i], 1)
        x = pooled(x, 2)
    for i in range(3):
        x = unit(x, w["narrow"][i], 0)
    x = x.mean((1, 2))
    if normalize_features:
        x = x / np.linalg.norm(x, axis=1, keepdims=True)
    return x, _dense(x, _weight_norm(w["head"]))


def resnet9(w, x, pools=(2, 2, 2, 1), norm="none"):
    def unit(x, w):
        x = convolved(x, w["linear"])
        return _relu(x if norm == "none" else _group_norm(x, w["norm"], 32, 1e-3))

    x = pooled(unit(unit(x, w["stem"]), w["widen"][0]), pools[0])
    x = x + unit(unit(x, w["residual_128"][0]), w["residual_128"][1])
    x = pooled(unit(x, w["widen"][1]), pools[1])
    x = pooled(unit(x, w["widen"][2]), pools[2])
    x = x + unit(unit(x, w["residual_512"][0]), w["residual_512"][1])
    x = pooled(x, pools[3]).reshape(len(x), -1)
    return x, _dense(x, w["head"]) if "head" in w else x


def resnet18(w, x, stem="imagenet", pool="mean", normalize_features=False):
    def unit(x, w, stride=1):
        return _batch_norm(convolved(x, w["linear"], stride), w["norm"])

    x = _relu(unit(x, w["stem"], 2 if stem == "imagenet" else 1))
    if stem == "imagenet":
        x = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-np.inf)
        views = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(1, 2))
        x = views[:, ::2, ::2].max(axis=(4, 5))
    for i in range(len(w["blocks"])):
        block = w["blocks"][i]
        stride = 2 if "shortcut" in block else 1
        h = unit(_relu(unit(x, block["first"], stride)), block["second"])
        x = _relu(h + (unit(x, block["shortcut"], stride) if stride == 2 else x))
    x = x.max((1, 2)) if pool == "max" else x.mean((1, 2))
    if normalize_features:
        x = x / np.linalg.norm(x, axis=1, keepdims=True)
    return x, _dense(x, w["head"]) if "head" in w else x


def fedct(w, x, every_norm, norm_last):
    sizes = (2, 1) if "dense" not in w else (2, 2, 2)
    for stage, size in enumerate(sizes):
        for i in range(size):
            unit = w["stages"][stage][i]
            x = convolved(x, unit["linear"])
            if norm_last:
                x = _relu(x)
                x = _batch_norm(x, unit["norm"]) if every_norm or i == 0 else x
            else:
                x = _relu(_batch_norm(x, unit["norm"]))
        x = pooled(x, 2)
    x = x.reshape(len(x), -1)
    if "dense" in w:
        x = _relu(_dense(x, w["dense"]["linear"]))
        x = _batch_norm(x, w["dense"]["norm"]) if every_norm else x
    return x, _dense(x, w["head"])


def mlp(w, x):
    x = x.reshape(len(x), -1)
    for i in range(2):
        x = _relu(_dense(x, w["hidden"][i]))
    return x, _dense(x, w["head"])


def linear_mlp(w, x):
    x = _dense(x.reshape(len(x), -1), w["hidden"][0])
    return x, _dense(x, w["head"])


def cnn(w, x, norm="none"):
    for i in range(2):
        x = convolved(x, w["units"][i]["linear"])
        x = _batch_norm(x, w["units"][i]["norm"]) if norm == "batch" else x
        x = pooled(_relu(x), 2)
    x = x.reshape(len(x), -1)
    x = _relu(_dense(x, w["dense"])) if "dense" in w else x
    return x, _dense(x, w["head"])
