"""SecureRowSums that survives dropouts without another upload: double masks and secret sharing.

After Bonawitz et al. (CCS 2017), on rows instead of one vector. In addition to the pairwise masks, from keys
(c_j, c_j G) made for this round, client j adds G(b_j) with a seed of its own. Both secrets are shared, and
any t of the p clients can reconstruct them:

    start      server -> each    round, participants, threshold          12 + 4 p bytes
    mask_key   each -> server    c_j G                                   32 bytes
    mask_keys  server -> each    all of them                             32 p bytes
    secrets    each -> each      shares of b_j and c_j for it alone      132 bytes
    upload     each -> server    masked rows of the others               8 (n' - n_j) C bytes
    survivors  server -> each    clients whose upload arrived            8 + 4 s bytes
    shares     each -> server    of b_j for survivors, c_j for others    66 p bytes
    sums       server -> each    hat Z[R_j]                              8 n_j C bytes

The server reconstructs b_j of the survivors and c_d of the dropped clients. It removes the masks G(b_j) and
those shared with the dropped clients from the sums. It never gets both secrets of one client: with c_j and
b_j it could open j's upload, which may only be late. A client answers one list of survivors per round, and
t > p / 2.

Plain double masking is not enough here: on the rows R_d of a dropped client all masks would be removed, and
the server would read the others' sum, which was meant for d. So client j covers R_m, for every m, with
another stream, from a seed that only j and m have. Client m removes it; if m has left, it stays. (There is
one seed per direction: the same stream on R_m by j and on R_j by m would be a one-time pad used twice.)

If fewer than t clients stay until they have sent shares, nothing can be unmasked. The round is aborted, its
uploads stay masked for ever, and the clients that are present start another one, as in `masked`, with a
threshold of their own.

A server that sends different false lists of survivors to the clients, and colludes with k of them, can read
more than any true list would give it: the contribution of a single client if t <= (p + k) / 2, since it then
gets both secrets of that client, and sums over fewer than t clients. Or it claims that all but two clients
have left, and gets a round of these two.

With `signed`, clients check before they give shares that all were shown the same lists (`signed_survivors`),
and that c_k G is client k's. Then t is more than two thirds of the participants, and these are more than two
thirds of all clients. With k < p / 3 nothing but sums over t clients or more can then be opened. If fewer are
left, no client gets sums.

    secrets    each -> each      keys of signatures and masks, too       64 bytes more
    signature  each -> server    of participants and survivors           64 bytes
    signatures server -> each    all of them                             68 s bytes

Cost: a client expands 2 p - 1 streams (p - 1 of them over the rows of one client alone), and one more for
each dropped and each surviving owner to finish; the server s + s d streams for d dropouts. A client
shares its secrets with 2 p t multiplications of 521 bits (0.3 us each), agrees on p - 1 seeds (35 us
each) and, with `signed`, checks s signatures (0.1 ms each).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from absl import logging

from jaxfed.secure.primitives import shamir
from jaxfed.secure.row_sums import masked, signed_survivors
from jaxfed.secure.row_sums.masked import RowSums
from jaxfed.secure.row_sums.participants import ENTRY_BYTES
from jaxfed.secure.row_sums.resilient_client import Client as Client
from jaxfed.secure.row_sums.resilient_server import Server
from jaxfed.secure.session.key_agreement import KEY_BYTES
from jaxfed.secure.session.phases import Parties


def run(
    parties: Parties,
    server: Server,
    members: Iterable[int] | None = None,
    *,
    first_round: int = 0,
    progress: masked.UploadsDone | None = None,
) -> RowSums:
    """Sums for all clients that stay; contributions of all that uploaded in the last round.

    A dropout before any upload starts another round without the client, which costs no upload. Dropouts that
    leave fewer clients than the threshold start another round, too, which costs one upload.

    Args:
        parties: the clients, `Client`s; one that leaves, or whose message is refused, is left out from then
            on.
        server: the server.
        members: those of the clients that take part; all if left out.
        first_round: number of the first round, above all used in the session.
        progress: receives the number of uploads at the server after each one, and the total; a round that is
            started again begins at 1.

    Returns:
        Z[R_j] of every client that stayed to the end, float64 [n_j, C], None for one in another process;
        empty if all have left, or too few are left to sign.

    Raises:
        ProtocolError: an unexpected message at a client, or secrets that do not fit together; no client gets
            sums then.
    """
    participants = sorted(parties.clients if members is None else members)
    number = first_round
    while participants and len(participants) >= server.least_participants:
        server.start(number, participants)
        present = _with_secrets(parties, server, participants)
        if len(present) == len(participants):
            present = _sum(parties, server, participants, progress)
            if server.can_unmask:
                for liar in server.unmask():
                    logging.warning("client %d is lost, its shares do not fit the others'", liar)
                    parties.presence.lose(liar)
                present = parties.presence.staying(present)
                return parties("finish", present, tell=server.send_sums, quiet=True)
        parties("abandon", present, quiet=True)
        participants, number = present, number + 1
    return {}


def _with_secrets(parties: Parties, server: Server, participants: Sequence[int]) -> list[int]:
    """Exchange keys and shares of one round; return the participants that stay, all if it succeeded."""
    steps: list[tuple[str, dict[str, Any]]] = [
        ("announce", {"tell": server.invite, "take": server.receive_key}),
        ("share_secrets", {"tell": server.send_keys}),
        ("collect_secrets", {"quiet": True}),
    ]
    for step, exchange in steps:
        if len(parties(step, participants, needs_all=True, **exchange)) < len(participants):
            break
    return parties.presence.staying(participants)


def _sum(
    parties: Parties,
    server: Server,
    participants: Sequence[int],
    progress: masked.UploadsDone | None,
) -> list[int]:
    """Exchange uploads and shares of one round while t clients are left; return these clients."""
    upload = masked.counting(server.receive_upload, len(participants), progress)
    answers_survivors = server.receive_signature if server.is_signed else None
    steps: list[tuple[str, dict[str, Any]]] = [
        ("upload", {"take": upload}),
        (
            "hear_survivors",
            {
                "tell": server.ask,
                "take": answers_survivors,
                "quiet": answers_survivors is None,
            },
        ),
        ("reveal", {"tell": server.send_signatures, "take": server.receive_shares}),
    ]
    present = list(participants)
    for step, exchange in steps:
        present = list(parties(step, present, **exchange))
        if len(present) < server.threshold:
            break
    return present


def message_bytes(
    num_rows: Sequence[int], num_classes: int, survivors: Sequence[int], *, signed: bool = False
) -> dict[str, int]:
    """Payload bytes by kind of one round in which the clients numbered `survivors` stay to the end."""
    p, s, total = len(num_rows), len(survivors), sum(num_rows)
    entry = ENTRY_BYTES * num_classes
    secrets = 2 * shamir.SHARE_BYTES + signed * (signed_survivors.KEY_BYTES + KEY_BYTES)
    signatures = {
        "signature": s * signed_survivors.SIGNATURE_BYTES,
        "signatures": s * s * signed_survivors.ENTRY_BYTES,
    }
    return {
        "start": p * (12 + 4 * p),
        "mask_key": p * KEY_BYTES,
        "mask_keys": p * p * KEY_BYTES,
        "secrets": p * (p - 1) * secrets,
        "upload": entry * sum(total - num_rows[client] for client in survivors),
        "survivors": s * (8 + 4 * s),
        **(signatures if signed else {}),
        "shares": s * p * shamir.SHARE_BYTES,
        "sums": entry * sum(num_rows[client] for client in survivors),
    }
