"""Targets of membership inference: labeled examples of clients, and as many held-out ones.

A member is an example that a client has with its label. Each member is matched with a held-out example of
the same class. Otherwise the class alone would separate them, as a client may have only few classes.
Unlabeled examples of clients are not members here, though methods train on them, too.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from jaxfed.errors import UsageError
from jaxfed.federation.clients import Federation
from jaxfed.random_streams import Stream


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
    own = [
        np.sort(rng.permutation(rows)[: members or None]) for rows in federation.partition.labeled
    ]
    if not any(map(len, own)):
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
    needed = np.bincount(federation.y[np.concatenate(own)], minlength=federation.num_classes)
    there = np.bincount(federation.y[held_out], minlength=federation.num_classes)
    if np.any(needed > there):
        lacking = int(np.argmax(needed - there))
        raise UsageError(
            f"config.audit.members={members}{'' if members else ' (all)'}: clients have {needed[lacking]} "
            f"labeled examples of class {lacking}, but only {there[lacking]} are held out to match them; "
            "use fewer members of a client, or a larger test split"
        )
    others = [np.asarray([next(of_class[c]) for c in federation.y[rows].tolist()]) for rows in own]
    left = np.setdiff1d(held_out, np.concatenate(others).astype(np.int64))
    if population > len(left):
        raise UsageError(
            f"config.audit.population={population}: {len(left)} held-out examples are left beside the "
            "non-members; use 1 to as many, or a larger test split"
        )
    parts = [part for pair in zip(own, others, strict=True) for part in pair]
    sizes = list(map(len, parts))
    return AuditTargets(
        example=np.concatenate(parts).astype(np.int64),
        client=np.repeat(np.repeat(np.arange(len(own), dtype=np.int32), 2), sizes),
        is_member=np.repeat(np.tile([True, False], len(own)), sizes),
        population=np.sort(rng.permutation(left)[:population]),
    )
