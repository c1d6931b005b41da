"""Checks of a labeling before anything is computed: the clients' vectors and labels, and who takes part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from absl import logging

from jaxfed.data.dataset import UNLABELED
from jaxfed.data.given_examples import examples_of, labels_of
from jaxfed.errors import UsageError
from jaxfed.host.parallel import processes
from jaxfed.xclp.settings.parameters import Parameters

_ROWS_AT_ONCE = 4096
_SMALLEST_EXPONENT = -100  # of a row's largest entry; float32's smallest normal exponent is -126


def checked_run(
    vectors: Sequence[np.ndarray],
    labels: Sequence[np.ndarray],
    p: Parameters,
    *,
    is_federation: bool,
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The clients' arrays, after all checks of a labeling.

    `is_federation`: the clients are all of the federation. Then those that `p.presence` names must be there,
    and classes without any label are warned of.

    Raises:
        UsageError: invalid arrays (`checked`), a client that does not exist, or settings that draw from the
            operating system in a run of several processes, where each would draw differently.
    """
    vectors, labels = checked(vectors, labels, p.num_classes)
    if is_federation and p.presence:
        from jaxfed.secure.session.channel import check_departures

        check_departures(p.departures, len(vectors), "xclp.presence")
    if is_federation:
        missing = np.setdiff1d(np.arange(p.num_classes), np.concatenate(labels)).tolist()
        if missing and len(missing) < p.num_classes:
            logging.warning(
                "xclp: no client has a label of %s: no point gets these classes", missing
            )
    draws = p.bit_epsilon > 0 or p.label_epsilon > 0 or p.projection == "group_secret"
    if draws and processes.are_several():
        raise UsageError(
            "bit_epsilon, label_epsilon and projection='group_secret' draw from the system, each process "
            "its own: allowed in a run of one process"
        )
    return vectors, labels


def checked(
    vectors: Sequence[np.ndarray], labels: Sequence[np.ndarray] | None, num_classes: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The clients' arrays, or a `UsageError` that names the client and what is wrong.

    Without labels all points are unlabeled.
    """
    for name, clients in (("vectors", vectors), ("labels", () if labels is None else labels)):
        if not _is_list(clients):
            kind = type(clients).__name__
            raise UsageError(f"xclp: {name} are a {kind}: use lists of one array a client")
    num_labels = len(vectors) if labels is None else len(labels)
    if len(vectors) != num_labels or not len(vectors):
        raise UsageError(
            f"xclp: {len(vectors)} clients' vectors and {num_labels} clients' labels: "
            "give one array of each for every client, one client at least"
        )
    pairs: list[tuple[np.ndarray, np.ndarray]] = []
    for client, examples in enumerate(vectors):
        where = f"xclp: client {client}"
        v = examples_of(examples, where, pairs[0][0] if pairs else None)
        if v.ndim > 2:
            raise UsageError(f"{where}: examples are an array {list(v.shape)}; use [n, d], vectors")
        y = np.full(len(v), UNLABELED) if labels is None else labels[client]
        pairs.append((_above_subnormal(v), labels_of(y, where, len(v), num_classes)))
    return [v for v, _ in pairs], [y for _, y in pairs]


def _is_list(value: object) -> bool:
    """True for a sequence of one entry a client, which an array [K, ...] is, too."""
    try:
        len(value)  # type: ignore[arg-type]
    except TypeError:
        return False
    return not isinstance(value, str | bytes | Mapping)


def _above_subnormal(vectors: np.ndarray) -> np.ndarray:
    """The same directions, scaled up where rows are so close to float32's minimum that devices flush to 0.

    It reads a few rows at a time, so the vectors of a file do not stay in memory.
    """
    largest = np.zeros(len(vectors))
    for start in range(0, len(vectors), _ROWS_AT_ONCE):
        rows = vectors[start : start + _ROWS_AT_ONCE]
        ends = (end.astype(np.float64) for end in (rows.max(axis=1), rows.min(axis=1)))
        largest[start : start + _ROWS_AT_ONCE] = np.abs(list(ends)).max(axis=0)
    _, exponents = np.frexp(largest)  # 0 of a row of zeros
    if not (exponents < _SMALLEST_EXPONENT).any():
        return vectors
    return np.ldexp(np.asarray(vectors), -exponents[:, None])
