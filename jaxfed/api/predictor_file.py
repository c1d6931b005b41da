"""A predictor as one file, and as a program for servers without this package.

    FILE    safetensors; metadata `jaxfed_predictor`: JSON of `header`, JSON, and `checksum`
            scaling.mean, scaling.scale     float64, if features were scaled
            N.NAME                          arrays of step N's network
            N.program                       uint8, the step as `jax.export` writes it

Nothing in the file is code of Python.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from jaxfed import __version__
from jaxfed.api.stages import HostStage, Stage, naming_lowering, without_flatbuffers
from jaxfed.data.dataset import Gaps
from jaxfed.data.encoding import RowEncoding, encoder_from
from jaxfed.data.standardization import Standardization
from jaxfed.errors import UsageError
from jaxfed.host import storage
from jaxfed.host.location import file_to_write, location

_VERSION = 1
_ENTRY = "jaxfed_predictor"
_SCALING, _PROGRAM = ("scaling.mean", "scaling.scale"), "program"


@dataclass(frozen=True, eq=False, repr=False)
class Contents:
    """All of a predictor.

    Attributes:
        method: its name in the run.
        classes: their names, in the order of the probabilities.
        encoding: from rows to examples, as in the run.
        stages: from examples to probabilities.
    """

    method: str
    classes: tuple[str, ...]
    encoding: RowEncoding
    stages: tuple[Stage | HostStage, ...]


def save_predictor(
    predictor: Contents, file: str | os.PathLike[str], platforms: tuple[str, ...]
) -> Path:
    """Write the file atomically; see `Predictor.save`."""
    path = file_to_write(file, "file")
    example, stages = _example(predictor.encoding), []
    for stage in _network_stages(predictor, "save"):
        stages.append(stage.exported(example, platforms))
        example = stage.result(example)
    encoding = predictor.encoding
    header = {
        "version": _VERSION,
        "jaxfed": __version__,
        "jax": jax.__version__,
        "method": predictor.method,
        "classes": predictor.classes,
        "encoder": encoding.encoder.described(),
        "gaps": encoding.gaps._asdict() if encoding.gaps else None,
        "is_flat": encoding.is_flat,
        "steps": [{"rows": stage.rows, "leaves": list(stage.leaves)} for stage in stages],
    }
    tensors: dict[str, np.ndarray] = {}
    if encoding.scaling is not None:
        tensors |= dict(zip(_SCALING, encoding.scaling, strict=True))
    for number, stage in enumerate(stages):
        tensors |= {f"{number}.{name}": leaf for name, leaf in stage.leaves.items()}
        tensors[f"{number}.{_PROGRAM}"] = np.frombuffer(stage.program, np.uint8)
    tensors = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    text = json.dumps(header)
    # One entry: safetensors has no order of several, and the same predictor gives the same bytes.
    entry = json.dumps({"header": text, "checksum": _checksum(text, tensors)})
    content = save(tensors, {_ENTRY: entry})
    path.parent.mkdir(parents=True, exist_ok=True)
    with storage.whole_file(path, "wb") as stream:
        stream.write(content)
    return path


def contents_of(file: str | os.PathLike[str]) -> Contents:
    """Read the file; see `jaxfed.load_predictor`."""
    path = location(file, "file")
    asked = f"load_predictor({os.fspath(file)!r})"
    if not path.is_file():
        raise UsageError(f"{asked}: no such file ({path.absolute()})")
    try:
        with safe_open(path, framework="numpy") as content:
            metadata = content.metadata() or {}
            tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError, TypeError) as error:
        text = " ".join(str(error).split())[:200]
        raise UsageError(f"{asked}: is damaged, or no predictor's file ({text})") from error
    if _ENTRY not in metadata:
        raise UsageError(
            f"{asked}: holds no predictor; result.predictor(...).save(FILE) writes one"
        )
    header = _header(asked, metadata[_ENTRY], tensors)
    if header["version"] > _VERSION:
        raise UsageError(
            f"{asked}: of jaxfed {header['jaxfed']}, which this version ({__version__}) cannot read; "
            "install that version or a later one"
        )
    gaps, scaling = header["gaps"], None
    if _SCALING[0] in tensors:
        scaling = Standardization(*(tensors[name] for name in _SCALING))
    return Contents(
        header["method"],
        tuple(header["classes"]),
        RowEncoding(
            encoder_from(header["encoder"]),
            Gaps(tuple(gaps["columns"]), tuple(gaps["medians"])) if gaps else None,
            scaling,
            header["is_flat"],
        ),
        tuple(_stage(asked, header, number, tensors) for number in range(len(header["steps"]))),
    )


def exported_program(predictor: Contents, platforms: tuple[str, ...]) -> bytes:
    """Return the program of all that follows the encoder; see `Predictor.export`."""
    stages, encoding = _network_stages(predictor, "export"), predictor.encoding
    given, prepared = _example(encoding, is_prepared=False), _example(encoding)

    def compute(x: jax.Array) -> jax.Array:
        for stage in stages:
            x = stage.traced(x)
        return x

    with naming_lowering(platforms):
        networks = export.export(jax.jit(compute), platforms=platforms)(_any_number(prepared))

        def whole(x: jax.Array) -> jax.Array:
            return networks.call(_prepared(encoding, x, prepared.shape))

        # Scaling is computed in float64, as in the run; networks are traced already.
        with jax.enable_x64(encoding.scaling is not None):
            program = export.export(jax.jit(whole), platforms=platforms)(_any_number(given))
        return bytes(program.serialize())


def _prepared(encoding: RowEncoding, x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """`RowEncoding.prepared` in a program."""
    if encoding.gaps is not None and encoding.gaps.columns:
        columns = jnp.asarray(encoding.gaps.columns, jnp.int32)
        is_gap = jnp.isnan(x[:, columns])
        medians = jnp.asarray(encoding.gaps.medians, jnp.float32)
        filled = jnp.where(is_gap, medians[None], x[:, columns])
        x = jnp.concatenate([x.at[:, columns].set(filled), is_gap.astype(jnp.float32)], axis=1)
    if encoding.scaling is not None:
        mean, scale = (jnp.asarray(each, jnp.float64)[None] for each in encoding.scaling)
        x = ((x.astype(jnp.float64) - mean) * scale).astype(jnp.float32)
    return x.reshape(x.shape[0], *shape).astype(jnp.float32) if encoding.is_flat else x


def _network_stages(predictor: Contents, asked: str) -> list[Stage]:
    found = []
    for stage in predictor.stages:
        if isinstance(stage, HostStage):
            raise UsageError(
                f"{asked}: {stage.reason}, and only a single network can be written to a file"
            )
        found.append(stage)
    return found


def _example(encoding: RowEncoding, *, is_prepared: bool = True) -> jax.ShapeDtypeStruct:
    """Shape and type of one example, before or after gaps and scaling."""
    x = encoding.encoder.blank()
    x = encoding.prepared(x) if is_prepared else x
    return jax.ShapeDtypeStruct(x.shape[1:], x.dtype)


def _any_number(example: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    shape = export.symbolic_shape(", ".join(["n", *map(str, example.shape)]))
    return jax.ShapeDtypeStruct(shape, example.dtype)


def _stage(
    asked: str, header: Mapping[str, Any], number: int, tensors: Mapping[str, np.ndarray]
) -> Stage:
    step = header["steps"][number]
    leaves = {name: tensors[f"{number}.{name}"] for name in step["leaves"]}
    program = tensors[f"{number}.{_PROGRAM}"].tobytes()
    try:
        function = export.deserialize(bytearray(program)).call
    except Exception as error:
        if isinstance(error, ImportError):
            raise without_flatbuffers() from error
        text = " ".join(str(error).split())[:200]
        raise UsageError(
            f"{asked}: written with jax {header['jax']}, which jax {jax.__version__} cannot read "
            f"({type(error).__name__}: {text}); save it again with this one"
        ) from error
    return Stage(leaves, function, step["rows"], program)


def _header(asked: str, entry: str, tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return the header if the checksum fits it and the arrays."""
    try:
        content = json.loads(entry)
        text, checksum = content["header"], content["checksum"]
    except (ValueError, KeyError, TypeError):
        text = checksum = ""
    if checksum != _checksum(text, tensors):
        raise UsageError(f"{asked}: is damaged, its checksum is another; save it again")
    header: dict[str, Any] = json.loads(text)
    return header


def _checksum(header: str, tensors: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256(header.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tensor.shape}".encode())
        digest.update(np.ascontiguousarray(tensor).tobytes())
    return digest.hexdigest()
