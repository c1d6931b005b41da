"""Noise on the labels that clients send for public examples, and the consensus from noisy labels.

    M_k = release(v_k)   at every client that votes      (`jaxfed.privacy.xor_mechanism`, `label_release`)
    B   = sum_k M_k      in the clear, or under masks
    n_hat(B)             estimated votes for each class, which a consensus takes as its tally

That is `decode` "unbiased". With "votes" a release counts as a vote without correction: for the XOR mechanism
the first class whose bit is set (FedCT's code), for randomized response the answer.

Noise is drawn from the given key, so runs can be repeated. This measures the cost of noise. It protects
nobody from those who know the seed.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.errors import UsageError
from jaxfed.federation.communication import Communication, label_bytes
from jaxfed.privacy import label_release, xor_mechanism
from jaxfed.privacy import randomized_response as rr
from jaxfed.privacy.label_sensitivity import BITS_A_ROW, trivial_rows
from jaxfed.training.consensus.attendance import Attendance
from jaxfed.training.consensus.consensus import Agreed, Consensus
from jaxfed.training.consensus.opened_tally import Sums, agreed, summed

Mechanism = Literal["xor", "randomized_response"]
Decode = Literal["unbiased", "votes"]

_LEAST = 2  # clients of a masked sum


class LabelNoise(NamedTuple):
    """Settings of the noisy release of labels.

    Fields:
        mechanism: name of the mechanism.
        epsilon: of one release of all a client's labels.
        rows: labels that may change with one private example; 0: all of them, the bound that always holds.
        decode: use of releases at the server, "unbiased" or "votes".
        condition: rule for the XOR mechanism's flip probability given epsilon, "exact" or the "paper"'s.
    """

    mechanism: Mechanism
    epsilon: float
    rows: int = 0
    decode: Decode = "unbiased"
    condition: xor_mechanism.Condition = "exact"


def agreed_under_noise(
    noise: LabelNoise,
    consensus: Consensus,
    votes: np.ndarray,
    client_id: np.ndarray,
    communication: Communication,
    *,
    num_classes: int,
    sums: Sums = "plaintext",
    noise_key: jax.Array,
    key: jax.Array | None = None,
    attendance: Attendance | None = None,
) -> Agreed:
    """Return the consensus on labels with noise; arguments as
    `jaxfed.training.consensus.opened_tally.agreed`.

    Args:
        noise: settings of the release.
        consensus: a consensus on labels; with decode "unbiased" it needs a tally.
        votes: int32 [K, U] before noise.
        client_id: int32 [K], -1 for a row that sends nothing.
        communication: all sent bytes are counted here.
        num_classes: C.
        sums: protocol that adds bits or answers.
        noise_key: typed; a client's noise is drawn from it by the client's number.
        key: typed, for random ties.
        attendance: departures of these clients, under masks.

    Raises:
        UsageError: an invalid epsilon or number of rows; a consensus without a tally.
    """
    rows = noise.rows or trivial_rows(votes.shape[1])
    is_xor = noise.mechanism == "xor"
    released: dict[int, np.ndarray] = {}  # place -> bits [U, C], or answers [U]
    for place in np.flatnonzero(client_id >= 0).tolist():
        key_of_client = jax.random.fold_in(noise_key, int(client_id[place]))
        released[place] = _released(noise, votes[place], rows, num_classes, key_of_client)
    if noise.decode == "votes":
        as_votes = np.full_like(votes, -1)
        for place, one in released.items():
            as_votes[place] = xor_mechanism.first_votes(one) if is_xor else one
        return agreed(
            consensus,
            as_votes,
            client_id,
            communication,
            num_classes=num_classes,
            sums=sums,
            key=key,
            attendance=attendance,
        )
    if consensus.from_tally is None:
        raise UsageError(
            "decode='unbiased': the consensus needs every client's labels, not estimates of their sum; "
            "allowed is 'votes'"
        )
    own = [one if is_xor else xor_mechanism.one_hot(one, num_classes) for one in released.values()]
    total = _total(own, communication, sums, attendance, are_bits=is_xor)
    number = len(own) if attendance is None else len(attendance.summed)
    if total is None:
        total, number = np.zeros((votes.shape[1], num_classes), np.int32), 0
    if is_xor:
        bits = BITS_A_ROW * rows
        flip = xor_mechanism.flip_probability(noise.epsilon, bits, num_classes, noise.condition)
        counts = xor_mechanism.unbiased_counts(total, number, flip)
    else:
        counts = label_release.unbiased_counts(total, noise.epsilon, rows, num_classes)
    return consensus.from_tally(jnp.asarray(counts.astype(np.float32)), key)


def released_marks(
    noise: LabelNoise, labels: np.ndarray, num_public: int, num_classes: int, key: jax.Array
) -> np.ndarray:
    """Return one client's noisy release of labels int32 [n], as class indicators bool [n, C].

    `num_public` is |U|; with `rows=0` it determines how many labels may change. `key` is the client's.
    """
    rows = noise.rows or trivial_rows(num_public)
    sent = _released(noise, labels, rows, num_classes, key)
    return sent if noise.mechanism == "xor" else xor_mechanism.one_hot(sent, num_classes)


def _released(
    noise: LabelNoise, labels: np.ndarray, rows: int, num_classes: int, key: jax.Array
) -> np.ndarray:
    """Return the released bits bool [n, C], or answers int32 [n]."""
    draw = rr.from_key(key)
    if noise.mechanism == "randomized_response":
        return label_release.release(labels, noise.epsilon, rows, num_classes, draw)
    marks, bits = xor_mechanism.one_hot(labels, num_classes), BITS_A_ROW * rows
    return xor_mechanism.release(marks, noise.epsilon, bits, draw, condition=noise.condition)


def _total(
    own: list[np.ndarray],
    communication: Communication,
    sums: Sums,
    attendance: Attendance | None,
    *,
    are_bits: bool,
) -> np.ndarray | None:
    """int32 [U, C], the sum of clients' indicators; None if no sum is opened."""
    marks = [one.astype(np.int32) for one in own]
    if sums != "plaintext":
        if len(marks) < _LEAST:
            if attendance is not None:
                attendance.note((), ())
            return None
        is_resilient = sums == "masked_resilient"
        return summed(marks, communication, is_resilient=is_resilient, attendance=attendance)
    for one in own:
        num_rows, num_classes = one.shape
        # A row without a label stays without one where answers are sent.
        values = num_classes + int(not one.any(axis=1).all())
        num_bytes = -(-one.size // 8) if are_bits else label_bytes(num_rows, values)
        communication.up("votes", num_bytes)
    return sum(marks[1:], marks[0]) if marks else None
