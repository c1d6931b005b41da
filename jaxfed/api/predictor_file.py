"""A predictor as one file, and as a program for servers without this package.

    FILE    safetensors; metadata `jaxfed_predictor`: JSON of `header`, JSON, and `checksum`
            scaling.mean, scaling.scale     float64, if features were scaled
            N.NAME                          arrays of step N's network
            N.program                       uint8, the step as `jax.export` writes it

Nothing in the file is code of Python, and its programs contain no operation that calls functions of the host
or talks to other devices. Everything else is checked against `_Header` and the programs' own types. A program
can still compute for ever or take all memory, and XLA's parser is not made for hostile bytes: read only files
from people that you trust.
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
from safetensors import safe_open
from safetensors.numpy import save

from jaxfed import __version__
from jaxfed.api.stages import HostStage, Stage, check_program, naming_lowering, without_flatbuffers
from jaxfed.data.dataset import Gaps
from jaxfed.data.encoding import RowEncoding, encoder_from
from jaxfed.data.transforms import Standardization
from jaxfed.errors import UsageError
from jaxfed.host import safe_files, storage
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


@dataclass(frozen=True)
class _Step:
    """A step's entry in the header.

    Attributes:
        rows: size of a batch.
        leaves: names of its arrays, in the order of the program's arguments.
    """

    rows: int
    leaves: tuple[str, ...]


@dataclass(frozen=True)
class _Header:
    """Header of a predictor's file, as `save_predictor` writes it."""

    version: int
    jaxfed: str
    jax: str
    method: str
    classes: tuple[str, ...]
    encoder: dict[str, Any]
    gaps: Gaps | None
    is_flat: bool
    steps: tuple[_Step, ...]


def contents_of(file: str | os.PathLike[str]) -> Contents:
    """Read the file; see `jaxfed.load_predictor`."""
    path = location(file, "file")
    asked = f"load_predictor({os.fspath(file)!r})"
    if not path.exists():
        raise UsageError(f"{asked}: no such file ({path.absolute()})")
    try:
        with safe_files.opened(path), safe_open(path, framework="numpy") as content:
            metadata = content.metadata() or {}
            tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
            if _ENTRY not in metadata:
                wrong = "holds no predictor; result.predictor(...).save(FILE) writes one"
                raise UsageError(f"{asked}: {wrong}")
            return _contents(_header(asked, metadata[_ENTRY], tensors), tensors, asked)
    except safe_files.Damaged as error:
        raise UsageError(f"{asked}: {error}") from error


def _contents(header: _Header, tensors: dict[str, np.ndarray], asked: str) -> Contents:
    """Return the contents after a check that names, shapes and types of all parts agree.

    Raises:
        UsageError: a program that cannot be read here.
        ValueError: parts that do not fit.
    """
    scaling = None
    if tensors.keys() & set(_SCALING):
        scaling = Standardization(*(tensors.pop(name) for name in _SCALING))
        if any(each.dtype != np.float64 for each in scaling):
            raise ValueError("scaling is not of float64")
    encoding = RowEncoding(encoder_from(header.encoder), header.gaps, scaling, header.is_flat)
    if scaling is not None and scaling.mean.shape != scaling.scale.shape:
        raise ValueError("mean and scale have different shapes")
    example, stages = _example(encoding), []
    for number, step in enumerate(header.steps):
        program = tensors.pop(f"{number}.{_PROGRAM}").tobytes()
        leaves = {name: tensors.pop(f"{number}.{name}") for name in step.leaves}
        exported = _deserialized(program, header.jax, asked)
        batch = jax.ShapeDtypeStruct((step.rows, *example.shape), example.dtype)
        arguments: list[Any] = [*leaves.values(), batch]
        if [_form(each) for each in exported.in_avals] != [_form(each) for each in arguments]:
            raise ValueError(f"the program of step {number} takes arguments of other shapes")
        (result,) = exported.out_avals
        if not step.rows or result.shape[:1] != (step.rows,):
            raise ValueError(f"the program of step {number} returns another number of rows")
        example = jax.ShapeDtypeStruct(result.shape[1:], result.dtype)
        stages.append(Stage(leaves, exported.call, step.rows, program, origin=asked))
    if tensors or _form(example) != ((len(header.classes),), np.dtype(np.float32)):
        raise ValueError(f"its steps do not return probabilities of {len(header.classes)} classes")
    return Contents(header.method, header.classes, encoding, tuple(stages))


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


def _form(array: Any) -> tuple[tuple[int, ...], np.dtype]:
    return array.shape, np.dtype(array.dtype)


def _deserialized(program: bytes, version: str, asked: str) -> export.Exported:
    """Return a program that `jax.export` has written.

    Raises:
        UsageError: JAX cannot read it; it calls functions of the host; flatbuffers is missing.
    """
    try:
        exported = export.deserialize(bytearray(program))
        check_program(exported)
        return exported
    except UsageError as error:
        raise UsageError(f"{asked}: {error}") from error
    except ImportError as error:
        raise without_flatbuffers() from error
    except Exception as error:
        text = " ".join(str(error).split())[:200]
        raise UsageError(
            f"{asked}: written with jax {version}, which jax {jax.__version__} cannot read "
            f"({type(error).__name__}: {text}); save it again with this one"
        ) from error


def _header(asked: str, entry: str, tensors: Mapping[str, np.ndarray]) -> _Header:
    """Return the header if the checksum fits it and the arrays.

    Raises:
        UsageError: it does not, or a later version wrote the file.
        ValueError: a part is missing or of another type.
    """
    content = safe_files.json_object(entry, asked)
    text = str(content.get("header"))
    if content.get("checksum") != _checksum(text, tensors):
        raise UsageError(f"{asked}: is damaged, its checksum is another; save it again")
    given = safe_files.json_object(text, asked)
    version = safe_files.typed(int, given.get("version"), "version")
    if version > _VERSION:
        raise UsageError(
            f"{asked}: of jaxfed {given.get('jaxfed')!s:.40}, which this version ({__version__}) cannot "
            "read; install that version or a later one"
        )
    header: _Header = safe_files.typed(_Header, given, "header")
    return header


def _checksum(header: str, tensors: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256(header.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tensor.shape}".encode())
        digest.update(np.ascontiguousarray(tensor).tobytes())
    return digest.hexdigest()
