"""The tally that a consensus needs, opened to the server: from answers in the clear, or by masked sums.

    t = sum over clients of their own tallies [U, C]
    (`jaxfed.training.consensus.consensus`)

In the clear the server has each client's answers. Under masks it learns t alone: votes are summed as integers
(`jaxfed.secure.vote_sums`), probabilities and numbers in fixed point (`jaxfed.secure.row_sums`). A masked sum
needs at least two clients, since one client's tally is its answers. `staple` needs each client's answers, and
works in the clear only.

Methods call `agreed` and nothing else.
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.errors import UsageError
from jaxfed.federation.communication import Communication, label_bytes
from jaxfed.training.consensus.consensus import Agreed, Consensus
from jaxfed.training.consensus.dropout import Attendance
from jaxfed.training.consensus.fresh_session import in_fresh_session

ConsensusSums = Literal["plaintext", "masked", "masked_resilient"]

_LEAST = 2  # clients of a masked sum
_FLOAT = 4


def fewest_clients(sums: ConsensusSums) -> int:
    """Least number of clients in a sum: 2 under masks, so that it reveals no single client's answers."""
    return 1 if sums == "plaintext" else _LEAST


def agreed(
    consensus: Consensus,
    answers: np.ndarray,
    client_id: np.ndarray,
    communication: Communication,
    *,
    num_classes: int,
    sums: ConsensusSums = "plaintext",
    key: jax.Array | None = None,
    attendance: Attendance | None = None,
) -> Agreed:
    """Return the clients' consensus: of any kind in the clear, of those with a tally under masks.

    Arguments and errors as `opened_tally`; `key` is for random ties.
    """
    if consensus.from_tally is None and sums == "plaintext":
        num_bytes = answer_bytes(consensus, answers, client_id, num_classes)
        communication.up("votes", num_bytes)
        return consensus.agree(jnp.asarray(answers), jnp.asarray(client_id), key)
    tally = opened_tally(
        consensus,
        answers,
        client_id,
        communication,
        num_classes=num_classes,
        sums=sums,
        attendance=attendance,
    )
    assert consensus.from_tally is not None  # a consensus with a tally has `from_tally`
    return consensus.from_tally(jnp.asarray(tally), key)


def opened_tally(
    consensus: Consensus,
    answers: np.ndarray,
    client_id: np.ndarray,
    communication: Communication,
    *,
    num_classes: int,
    sums: ConsensusSums = "plaintext",
    attendance: Attendance | None = None,
) -> np.ndarray:
    """Return the tally, the argument of `consensus.from_tally`.

    Args:
        consensus: the rule that defines the tally.
        answers: of K clients, in the form that the consensus takes.
        client_id: int32 [K], -1 for a row without a client.
        communication: all sent bytes are counted here.
        num_classes: C.
        sums: protocol of the sum.
        attendance: departures of these clients, under masks; all stay if left out.

    Returns:
        int32 [U, C] of labels, float32 [U, C] of probabilities, [U, 2] of numbers. All protocols give the
        same result: bit for bit for labels, else up to 2^-41 per client and float32 rounding. Zeros if a
        masked sum has fewer than two clients.

    Raises:
        UsageError: a consensus without a tally.
    """
    if consensus.tally is None:
        raise UsageError(
            "the consensus needs every client's labels, not their sum",
            key="sums",
            value=sums,
            allowed="use a consensus with a tally, such as 'majority'",
        )
    if sums == "plaintext":
        num_bytes = answer_bytes(consensus, answers, client_id, num_classes)
        communication.up("votes", num_bytes)
        return np.asarray(consensus.tally(jnp.asarray(answers), jnp.asarray(client_id)))
    one = jnp.zeros(1, jnp.int32)
    own = [
        np.asarray(consensus.tally(jnp.asarray(answers[row : row + 1]), one))
        for row in np.flatnonzero(np.asarray(client_id) >= 0)
    ]
    if len(own) < _LEAST:
        if attendance is not None:
            attendance.note((), ())
        nobody = jnp.full(len(answers), -1, jnp.int32)
        return np.asarray(consensus.tally(jnp.asarray(answers), nobody))
    is_resilient = sums == "masked_resilient"
    return summed(own, communication, is_resilient=is_resilient, attendance=attendance)


def summed(
    own: list[np.ndarray],
    communication: Communication,
    *,
    is_resilient: bool = False,
    attendance: Attendance | None = None,
) -> np.ndarray:
    """The sum of the matrices [U, C] of two or more clients, in a fresh session.

    Integer matrices hold indicators 0 and 1, votes or noisy ones; their sum is exact, int32. Other sums are
    float32. Zeros if all clients have left.
    """
    from jaxfed.secure.row_sums.server_sums import server_sums
    from jaxfed.secure.vote_sums import vote_histogram

    are_marks = not np.issubdtype(own[0].dtype, np.floating)
    add = vote_histogram if are_marks else server_sums
    total = in_fresh_session(
        add, own, communication, attendance=attendance, is_resilient=is_resilient
    )
    kind = np.int32 if are_marks else np.float32
    return np.zeros(own[0].shape, kind) if total is None else total.astype(kind)


def answer_bytes(
    consensus: Consensus, answers: np.ndarray, client_id: np.ndarray, num_classes: int
) -> int:
    """Bytes of all clients' answers in the clear: packed labels, or float32.

    A label takes ceil(log2 C) bits, or ceil(log2(C + 1)) for a client that abstains anywhere.
    """
    sent = np.asarray(answers)[np.asarray(client_id) >= 0]
    if consensus.answers != "labels":
        return _FLOAT * sent.size
    num_values = [num_classes + int(np.any(labels < 0)) for labels in sent]
    return sum(label_bytes(sent.shape[1], number) for number in num_values)
