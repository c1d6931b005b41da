"""SecureRowSums that survives dropouts without another upload: double masks and shared secrets.

After Bonawitz et al. (CCS 2017), on rows instead of one vector. Beside the pairwise masks, from keys
(c_j, c_j G) made for this round, client j adds G(b_j) with a seed of its own. Both secrets are shared,
any t of the p clients can give them back:

    start      server -> each    round, participants, threshold          12 + 4 p bytes
    mask_key   each -> server    c_j G                                   32 bytes
    mask_keys  server -> each    all of them                             32 p bytes
    secrets    each -> each      shares of b_j and c_j for it alone      132 bytes
    upload     each -> server    masked rows of the others               8 (n' - n_j) C bytes
    survivors  server -> each    whose upload arrived                    8 + 4 s bytes
    shares     each -> server    of b_j for survivors, c_j for others    66 p bytes
    sums       server -> each    hat Z[R_j]                              8 n_j C bytes

The server rebuilds b_j of the survivors and c_d of the dropped, takes the masks G(b_j) and those shared
with the dropped out of the sums, and never gets both secrets of one client: with c_j and b_j it could
open j's upload, which may only be late. A client answers one list of survivors a round, and t > p / 2.

One thing plain double masking does not give here: on the rows R_d of a dropped client every mask would
be gone and the server would read the others' sum, which was meant for d. So client j covers R_m, for
every m, with another stream, of a seed that only j and m have; m takes it off, and if m is gone nobody
can. (The seed is one of a direction: the same stream on R_m by j and on R_j by m would be a pad used
twice.)

Fewer than t that stay through shares: nobody can unmask. The round is given up, its uploads stay masked
for ever, and those present start another one, as in `row_sums`, under a threshold of their own.

A server that lies about who survived, to each client in its own way, and has clients on its side, can get
more than any true list would give it: both secrets of a client from t <= (p + k) / 2 with k colluders, and
from two clients on a smaller sum than of t; or it says that all but two have left and gets a round of
these. With `signed`, clients check that they were all shown the same lists before they give shares
(`signed_survivors`) and that c_k G is client k's; t is more than two thirds of the participants, and these
of all clients. With k < p / 3 nothing but sums over t clients or more can then be opened; where fewer are
left, nobody gets any.

    secrets    each -> each      keys of signatures and masks as well    64 bytes more
    signature  each -> server    of participants and survivors           64 bytes
    signatures server -> each    all of them                             68 s bytes

Cost: a client expands 2 p - 1 streams (p - 1 of them over the rows of one client alone), and one more for
each dropped and each surviving owner to finish; the server s + s d streams for d dropouts. A client
shares its secrets with 2 p t multiplications of 521 bits (0.3 us each), agrees on p - 1 seeds (35 us
each) and, with `signed`, checks s signatures (0.1 ms each).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from jaxfed.secure.primitives import shamir
from jaxfed.secure.row_sums import masked, signed_survivors
from jaxfed.secure.row_sums.masked import Sums
from jaxfed.secure.row_sums.participants import ENTRY_BYTES
from jaxfed.secure.row_sums.resilient_client import Client
from jaxfed.secure.row_sums.resilient_server import Server
from jaxfed.secure.session.endpoint import DroppedOut
from jaxfed.secure.session.key_agreement import KEY_BYTES


def run(
    clients: Mapping[int, Client],
    server: Server,
    *,
    first_round: int = 0,
    progress: masked.Progress | None = None,
) -> Sums:
    """Sums for all clients that stay; contributions of all that uploaded in the last round.

    A dropout before any upload starts another round without the client, which costs no upload. So do
    dropouts that leave fewer clients than the threshold, which costs one.

    Args:
        clients: by address; one whose endpoint raises `DroppedOut` is left out from then on.
        server: the server.
        first_round: number of the first round, above all used in the session.
        progress: told after every upload how many the server has, of how many; a round that is
            started again begins at 1.

    Returns:
        Z[R_j] of every client that stayed to the end, float64 [n_j, C]; of nobody where all have left, or
        where too few are left that sign.

    Raises:
        ProtocolError: a message that does not belong where it arrives; nobody gets sums then.
    """
    participants, number = sorted(clients), first_round
    while participants and len(participants) >= server.least_participants:
        server.start(number, participants)
        try:
            _share_secrets(clients, server, participants)
        except DroppedOut as dropout:
            present = [client for client in participants if client != dropout.client]
        else:
            present = _sum(clients, server, participants, progress)
            if server.can_unmask:
                server.unmask()
                return masked.finished(clients, server, present)
        for client in present:
            clients[client].abandon()
        participants, number = present, number + 1
    return {}


def _share_secrets(
    clients: Mapping[int, Client], server: Server, participants: Sequence[int]
) -> None:
    """Keys and shares of one round: all participants, or `DroppedOut`."""
    for client in participants:
        server.invite(client)
        clients[client].announce()
        server.receive_key(client)
    for client in participants:
        server.send_keys(client)
        clients[client].share_secrets()
    for client in participants:
        clients[client].collect_secrets()


def _sum(
    clients: Mapping[int, Client],
    server: Server,
    participants: Sequence[int],
    progress: masked.Progress | None,
) -> list[int]:
    """Uploads and shares of one round, as long as there are t clients; who is still there."""

    def upload(client: int) -> None:
        clients[client].upload()
        server.receive_upload(client)
        if progress:
            progress(participants.index(client) + 1, len(participants))

    def agree(client: int) -> None:
        server.ask(client)
        clients[client].hear_survivors()
        server.receive_signature(client)

    def reveal(client: int) -> None:
        server.send_signatures(client)
        clients[client].reveal()
        server.receive_shares(client)

    present = list(participants)
    for step in (upload, agree, reveal):
        present = _each(present, step)
        if len(present) < server.threshold:
            break
    return present


def _each(clients: Sequence[int], step: Callable[[int], None]) -> list[int]:
    """Take the step with every client; who is still there."""
    present = []
    for client in clients:
        try:
            step(client)
            present.append(client)
        except DroppedOut:
            continue
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
