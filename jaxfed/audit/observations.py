"""Observations of an attacker: the examples that it asks about, a round's answers for them, and their files.

Targets of membership inference are labeled examples of clients, the members, and as many held-out ones. Each
member is matched with a held-out example of the same class. Otherwise the class alone would separate them, as
a client may have only few classes. Unlabeled examples of clients are not members here, though methods train
on them, too.

A `Observation` has a message's answers for the targets and the population. If a message consists of labels
alone, perturbed copies of each target are queried as well (Choquette-Choo, Tramer, Carlini, Papernot,
"Label-Only Membership Inference Attacks", ICML 2021):

    translations    4 copies of an image, moved by one pixel; 5 queries with the image itself
    noise           12 copies, 4 for each of the radii `RADII`, in standard deviations of all targets' values;
                    13 queries with the example itself

A query has one copy of every target, so copies of one example are never in one graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from jaxfed.audit.views import SERVER, Kind, View
from jaxfed.errors import UsageError
from jaxfed.federation.clients import Federation
from jaxfed.host import safe_files, storage
from jaxfed.random_streams import Stream

RADII = (0.1, 0.3, 1.0)
_DRAWS = 4  # for each radius
_SHIFTS = ((-1, 1), (1, 1), (-1, 2), (1, 2))  # by one pixel along an axis


class AuditTargets(NamedTuple):
    """The examples that attacks decide on.

    Fields:
        example: int64 [n], rows of `Federation.x`.
        client: int32 [n], the client under attack: a member's own.
        is_member: bool [n], half of them.
        population: int64 [m], held-out examples that the attacker knows to be non-members.
    """

    example: np.ndarray
    client: np.ndarray
    is_member: np.ndarray
    population: np.ndarray

    @property
    def examples(self) -> np.ndarray:
        """int64 [n + m], the targets followed by the population."""
        return np.concatenate([self.example, self.population])


def drawn_targets(
    federation: Federation, *, members: int = 0, population: int, seed: int
) -> AuditTargets:
    """Draw the targets; they are the same for all methods of a repeat.

    Args:
        federation: the clients; `test` has the held-out examples.
        members: maximum number of labeled examples of a client; 0: all.
        population: m.
        seed: of the draw.

    Raises:
        UsageError: no client has labels, or enough of them, or too few examples were held out.
    """
    rng = np.random.default_rng((seed, Stream.AUDIT_TARGETS))
    rows_of = [
        np.sort(rng.permutation(rows)[: members or None]) for rows in federation.partition.labeled
    ]
    if not any(map(len, rows_of)):
        raise UsageError(
            "audit: no client has labeled examples, whose membership could be inferred"
        )
    most = max(map(len, federation.partition.labeled))
    if members > most:
        raise UsageError(
            f"config.audit.members={members}: no client has more than {most} labeled examples; use "
            f"1 to {most}, and 0 for all"
        )
    held_out = rng.permutation(federation.test)
    of_class = {
        c: iter(held_out[federation.y[held_out] == c]) for c in range(federation.num_classes)
    }
    needed = np.bincount(federation.y[np.concatenate(rows_of)], minlength=federation.num_classes)
    available = np.bincount(federation.y[held_out], minlength=federation.num_classes)
    if np.any(needed > available):
        lacking = int(np.argmax(needed - available))
        raise UsageError(
            f"config.audit.members={members}{'' if members else ' (all)'}: clients have {needed[lacking]} "
            f"labeled examples of class {lacking}, but only {available[lacking]} are held out to match them; "
            "use fewer members of a client, or a larger test split"
        )
    others = [
        np.asarray([next(of_class[c]) for c in federation.y[rows].tolist()]) for rows in rows_of
    ]
    left = np.setdiff1d(held_out, np.concatenate(others).astype(np.int64))
    if population > len(left):
        raise UsageError(
            f"config.audit.population={population}: {len(left)} held-out examples are left beside the "
            "non-members; use 1 to as many, or a larger test split"
        )
    parts = [part for pair in zip(rows_of, others, strict=True) for part in pair]
    sizes = list(map(len, parts))
    return AuditTargets(
        example=np.concatenate(parts).astype(np.int64),
        client=np.repeat(np.repeat(np.arange(len(rows_of), dtype=np.int32), 2), sizes),
        is_member=np.repeat(np.tile([True, False], len(rows_of)), sizes),
        population=np.sort(rng.permutation(left)[:population]),
    )


class Observation(NamedTuple):
    """One kind of message, in one round.

    Fields:
        message: its name.
        kind: of answers.
        client: int32 [S]; -1 if it depends on all clients' examples.
        answers: float32 [S, n + m, C], for targets and population.
        norms: float32 [S, n] of gradients at the targets; [S, 0] without gradients.
        translated: float32 [S, n], share of a target and its translations that have the target's label;
            [S, 0] if the message is not labels, or examples are not images.
        noisy: the same for a target and its noisy copies; [S, 0] if the message is not labels.
        adversary: the party that has the message, a key of `jaxfed.audit.views.SEEN_BY`.
    """

    message: str
    kind: Kind
    client: np.ndarray
    answers: np.ndarray
    norms: np.ndarray
    translated: np.ndarray = np.zeros((1, 0), np.float32)
    noisy: np.ndarray = np.zeros((1, 0), np.float32)
    adversary: str = SERVER

    def asked_about(self, targets: AuditTargets) -> list[np.ndarray]:
        """For each of the S rows the targets that it may give away, int64."""
        everybody = np.arange(len(targets.example))
        return [
            everybody if client < 0 else np.flatnonzero(targets.client == client)
            for client in self.client.tolist()
        ]


def observations(
    views: Iterable[View], federation: Federation, targets: AuditTargets
) -> list[Observation]:
    """Query every view."""
    x = federation.x[targets.examples]
    target_x, label = federation.x[targets.example], federation.y[targets.example]
    seen = []
    for view in views:
        nothing = np.zeros((len(view.client), 0), np.float32)
        answers = np.asarray(view.answers(x), np.float32)
        norms = translated = noisy = nothing
        if view.gradient_norms is not None:
            norms = np.asarray(view.gradient_norms(target_x, label), np.float32)
        if view.kind == "labels":
            first = _hits(answers[:, : len(target_x)], label)
            noisy = _kept(view, first, _noisy(target_x), label)
            if target_x.ndim > 2:
                translated = _kept(view, first, _translated(target_x), label)
        client = np.asarray(view.client, np.int32)
        columns = view.message, view.kind, client, answers, norms
        seen.append(Observation(*columns, translated, noisy, view.adversary))
    return seen


def _hits(answers: np.ndarray, label: np.ndarray) -> np.ndarray:
    """Answers for the targets' own labels, [S, n]."""
    return np.take_along_axis(answers, label[None, :, None], axis=-1)[..., 0]


def _kept(
    view: View, first: np.ndarray, copies: Iterable[np.ndarray], label: np.ndarray
) -> np.ndarray:
    """Share of queries that have the target's label, float32 [S, n]: `first`, and one for each copy."""
    asked = [first, *(_hits(np.asarray(view.answers(x), np.float32), label) for x in copies)]
    return np.asarray(np.mean(asked, axis=0), np.float32)


def _translated(x: np.ndarray) -> Iterator[np.ndarray]:
    """Images [n, height, width, ...] moved by one pixel; the edge is repeated."""
    for step, axis in _SHIFTS:
        size = x.shape[axis]
        yield np.take(x, np.clip(np.arange(size) - step, 0, size - 1), axis=axis)


def _noisy(x: np.ndarray) -> Iterator[np.ndarray]:
    """Examples with noise, of the same type and within the same range."""
    rng = np.random.default_rng(Stream.PERTURBED_QUERIES)
    values = x.astype(np.float32)
    low, high, scale = values.min(), values.max(), values.std()
    for radius in np.repeat(RADII, _DRAWS):
        moved = values + radius * scale * rng.standard_normal(x.shape, np.float32)
        moved = np.clip(moved, low, high)
        yield (np.rint(moved) if np.issubdtype(x.dtype, np.integer) else moved).astype(x.dtype)


class Shadows(NamedTuple):
    """Answers of shadow models for targets and population.

    Fields:
        is_in: bool [R, n], True if shadow r was trained on the target; none is trained on the population.
        answers: float32 [R, n + m, C], probabilities, or marks of labels.
    """

    is_in: np.ndarray
    answers: np.ndarray


RoundKey = tuple[str, int, int]  # method, repeat, round
_One = TypeVar("_One", Observation, Shadows)


@dataclass(frozen=True)
class AuditFiles:
    """Audit files of one experiment, under a folder."""

    folder: Path

    def save_observations(self, round_key: RoundKey, seen: Sequence[Observation]) -> None:
        """Save the observations of a round."""
        _save(self._of("observations", *round_key), dict(enumerate(seen)))

    def observations(self, name: str, repeat: int) -> dict[int, list[Observation]]:
        """Return round -> observations; empty if the method reveals nothing or has diverged."""
        files = (self.folder / "observations").glob(f"{name}-{repeat}-*.npz")
        numbers = sorted(int(file.stem.rpartition("-")[2]) for file in files)
        seen = {n: _read(self._of("observations", name, repeat, n), Observation) for n in numbers}
        return {number: list(each.values()) for number, each in seen.items() if each}

    def save_shadows(self, name: str, by_round: Mapping[int, Shadows]) -> None:
        """Save the predictions of shadow models after some rounds."""
        _save(self._of("shadows", name), by_round)

    def shadows(self, name: str) -> dict[int, Shadows]:
        """Return round -> predictions of the shadow models; empty if they have not been computed."""
        path = self._of("shadows", name)
        return _read(path, Shadows) if path.exists() else {}

    def _of(self, kind: str, *key: str | int) -> Path:
        return self.folder / kind / f"{'-'.join(map(str, key))}.npz"


def _save(path: Path, each: Mapping[int, NamedTuple]) -> None:
    """Write named tuples by their numbers, FIELD_NUMBER."""
    arrays = {
        f"{field}_{number}": np.asarray(value)
        for number, one in each.items()
        for field, value in one._asdict().items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with storage.whole_file(path, "wb") as stream:
        np.savez(stream, **arrays)  # type: ignore[arg-type]


def _read(path: Path, kind: type[_One]) -> dict[int, _One]:
    arrays = safe_files.arrays_of(path)
    with safe_files.guarded(path):
        first = f"{kind._fields[0]}_"
        numbers = [int(one.removeprefix(first)) for one in arrays if one.startswith(first)]
        return {
            number: kind(*(_value(arrays[f"{field}_{number}"]) for field in kind._fields))
            for number in numbers
        }


def _value(array: np.ndarray) -> Any:
    return array if array.ndim else array.item()
