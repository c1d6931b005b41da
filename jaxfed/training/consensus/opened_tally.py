"""The tally that a consensus needs, opened to the server: from answers in the clear, or by masked sums.

    t = sum over clients of their own tallies [U, C]
    (`jaxfed.training.consensus.consensus`)

In the clear the server has each client's answers. Under masks it learns t alone: votes are summed as integers
(`jaxfed.secure.vote_sums`), probabilities and numbers in fixed point (`jaxfed.secure.row_sums`). A masked sum
needs at least two clients, since one client's tally is its answers. `staple` needs each client's answers, and
works in the clear only.

Methods call `agreed`, and say with a `ClientSums` how answers are added.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from jaxfed.errors import UsageError
from jaxfed.federation.communication import label_bytes
from jaxfed.training.consensus.client_sums import ClientSums
from jaxfed.training.consensus.consensus import Agreed, Consensus

_FLOAT = 4


def agreed(
    consensus: Consensus,
    answers: np.ndarray,
    client_id: np.ndarray,
    sums: ClientSums,
    *,
    num_classes: int,
) -> Agreed:
    """Return the clients' consensus: of any kind in the clear, of those with a tally under masks.

    Arguments and errors as `opened_tally`.
    """
    if consensus.from_tally is None and sums.is_plaintext:
        num_bytes = answer_bytes(consensus, answers, client_id, num_classes)
        sums.communication.up("votes", num_bytes)
        return consensus.agree(jnp.asarray(answers), jnp.asarray(client_id))
    tally = opened_tally(consensus, answers, client_id, sums, num_classes=num_classes)
    assert consensus.from_tally is not None  # a consensus with a tally has `from_tally`
    return consensus.from_tally(jnp.asarray(tally))


def opened_tally(
    consensus: Consensus,
    answers: np.ndarray,
    client_id: np.ndarray,
    sums: ClientSums,
    *,
    num_classes: int,
) -> np.ndarray:
    """Return the tally, the argument of `consensus.from_tally`.

    Args:
        consensus: the rule that defines the tally.
        answers: of K clients, in the form that the consensus takes.
        client_id: int32 [K], -1 for a row without a client.
        sums: how answers are added, and where bytes are counted.
        num_classes: C.

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
            value=sums.protocol,
            allowed="use a consensus with a tally, such as 'majority'",
        )
    if sums.is_plaintext:
        num_bytes = answer_bytes(consensus, answers, client_id, num_classes)
        sums.communication.up("votes", num_bytes)
        return np.asarray(consensus.tally(jnp.asarray(answers), jnp.asarray(client_id)))
    rows = np.flatnonzero(np.asarray(client_id) >= 0)
    total = sums.total(
        len(rows),
        (answers.shape[1], 2 if consensus.answers == "numbers" else num_classes),
        lambda client: own_tally(consensus, answers[rows[client]]),
        are_marks=consensus.answers == "labels",
    )
    if total is None:
        nobody = jnp.full(len(answers), -1, jnp.int32)
        return np.asarray(consensus.tally(jnp.asarray(answers), nobody))
    return total


def own_tally(consensus: Consensus, answer: np.ndarray) -> np.ndarray:
    """Return one client's summand of the tally, from its answer, [U] or [U, C]."""
    assert consensus.tally is not None
    return np.asarray(consensus.tally(jnp.asarray(answer[None]), jnp.zeros(1, jnp.int32)))


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
