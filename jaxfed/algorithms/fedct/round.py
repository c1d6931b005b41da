"""The two functions of a round of FedCT: the clients' turn (lines 3 to 6) and the server's (10 to 12).

    turn = client_turn(settings, model, cohort, targets, rows, fit_key, draw_of)
    state, metrics = server_round(settings, clients, state, cohort, key)

A simulation calls both in one process, and trains the models of a cohort in one program. On a network
(`jaxfed.algorithms.fedct.network`) each client is a cohort of one. In both, what the server has of a client
is the message that `client_turn` has packed: its labels of U by ceil(log2 C) bits each, or ceil(log2(C + 1))
if it abstains anywhere; the release of the XOR mechanism by U C bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from jaxfed.algorithms.fedct.settings import LabelPrivacy, Voting
from jaxfed.federation.algorithm import Metrics, Unusable
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.communication import Communication, label_bytes
from jaxfed.learners.client_fit import ClientFit, asked, count, speaking, take_turn, with_turns
from jaxfed.learners.learner import Learner, PublicTargets, State
from jaxfed.privacy import randomized_response as rr
from jaxfed.privacy.xor_mechanism import estimate, one_hot
from jaxfed.training.consensus import Agreed, Attendance, fewest_clients, largest_share

if TYPE_CHECKING:
    from jaxfed.secure.session.parties import Session

DrawOf = Callable[[int], rr.DrawUniform]  # client -> source of its noise


class FedCTState(NamedTuple):
    """State before a round.

    Fields:
        learner: the models h^i of all clients; () at the server of a network.
        label: int32 [U], L; -1 where clients abstained, or have not voted yet.
        weight: float32 [U], 1 for the examples of P, else 0.
        turns: int32 [M], communications that each client took part in.
        rows: int32, labels that noise hides; 0 without noise, and before an estimate.
        round: int32, rounds done.
    """

    learner: Any
    label: np.ndarray
    weight: np.ndarray
    turns: np.ndarray
    rows: np.ndarray
    round: np.ndarray


@dataclass(frozen=True, eq=False)
class CoTraining:
    """Settings of both sides; attributes as the keywords of `fedct`."""

    learner: Learner
    public: np.ndarray
    num_classes: int
    steps: int
    voting: Voting
    privacy: LabelPrivacy

    def marks(self, labels: np.ndarray, client: int, rows: int, draw_of: DrawOf) -> np.ndarray:
        """Return what a client sends for labels int32 [n]: class indicators bool [n, C], maybe noisy."""
        if not self.privacy.has_noise:
            return one_hot(labels, self.num_classes)
        rows = rows or len(self.public)
        return self.privacy.released(labels, rows, self.num_classes, draw_of(client))

    def unpacked(self, content: bytes, *, abstains: bool) -> np.ndarray:
        """Decode a client's message, bool [U, C]; errors as of the function `unpacked`."""
        shape = len(self.public), self.num_classes
        return unpacked(self.privacy, content, shape, abstains=abstains)


class Sent(NamedTuple):
    """A client's labels of U, as they leave it.

    Fields:
        content: packed labels, or bits (`packed`); b"" under masks.
        abstains: True if labels are missing in the content.
        summand: bool [U, C], which leaves the client under masks alone; None in the clear, and where the
            client is in another process.
    """

    content: bytes
    abstains: bool
    summand: np.ndarray | None


class Turn(NamedTuple):
    """Result of the clients' turns.

    Fields:
        learner: the models after local steps, which stay at their clients.
        metrics: of the fit.
        voters: int32 [K], the clients that have labels; -1 in other rows.
        sent: client -> what it sends, of each voter.
        rows: r, labels that noise hides.
    """

    learner: State
    metrics: Metrics
    voters: np.ndarray
    sent: Mapping[int, Sent]
    rows: int


def client_turn(
    settings: CoTraining,
    model: State,
    cohort: Cohort,
    targets: PublicTargets,
    rows: int,
    fit_key: jax.Array,
    draw_of: DrawOf,
    *,
    neighbor_key: jax.Array | None = None,
) -> Turn:
    """Run lines 3 to 6 at the clients of a cohort; a client's result does not depend on the others.

    Args:
        settings: of the method.
        model: the learner's state before the round, h.
        cohort: the clients with their examples.
        targets: P, from the server.
        rows: r, from the server; 0 without noise, or if it is not known yet.
        fit_key: typed, the round's; a learner draws a client's numbers by the client's number.
        draw_of: client -> source of its noise; a party that knows the source can remove the noise.
        neighbor_key: typed; key of the estimate of r, if the server has none.
    """
    fit, labels = _fitted(settings, model, cohort, targets, fit_key)
    voters = speaking(fit.client_id, labels)
    if settings.privacy.has_noise and not rows and neighbor_key is not None:
        rows = estimated_rows(
            lambda one: _fitted(settings, model, one, targets, fit_key)[1][0],
            cohort,
            voters,
            settings.public,
            settings.num_classes,
            neighbor_key,
            num_neighbors=settings.privacy.neighbors,
        )
    sent = {}
    for client_labels, client in zip(labels, voters.tolist(), strict=True):
        if client >= 0:
            marks = settings.marks(client_labels, client, rows, draw_of)
            if settings.voting.sums == "plaintext":
                sent[client] = Sent(*packed(settings.privacy, marks), None)
            else:
                sent[client] = Sent(b"", False, marks)
    return Turn(fit.state, fit.metrics, voters, sent, rows)


def _fitted(
    settings: CoTraining, model: State, cohort: Cohort, targets: PublicTargets, key: jax.Array
) -> tuple[ClientFit, np.ndarray]:
    """Lines 3 and 5: clients train on their labels and on P, and label U, int32 [K, U]."""
    learner, public = settings.learner, settings.public
    fit = take_turn(learner, model, cohort, targets, key, settings.steps)
    return asked(fit, learner, "predict", public, settings.num_classes)


class Clients(Protocol):
    """The clients of a run, as the server reaches them."""

    def turn(self, state: FedCTState, cohort: Cohort, key: jax.Array) -> Turn:
        """Return the outcome of `client_turn` at all clients of the cohort; `key` is the round's."""
        ...

    def attendance(self, voters: np.ndarray) -> Attendance | None:
        """Return the voters that may leave a sum under masks; None: all stay."""
        ...

    def session(
        self, ids: list[int], partners: int, round_number: int, attendance: Attendance | None
    ) -> AbstractContextManager[Session]:
        """Open a session whose addresses are the indices in `ids`."""
        ...


def server_round(
    settings: CoTraining, clients: Clients, state: FedCTState, cohort: Cohort, key: jax.Array
) -> tuple[FedCTState, Metrics]:
    """The clients' turns, then lines 10 to 12: L and its voters; without a consensus L stays."""
    sums, number = settings.voting.sums, int(state.round) + 1
    if settings.voting.mask_partners:
        from jaxfed.secure.session.neighborhoods import check_partners

        present = int(np.sum(np.asarray(cohort.client_id) >= 0))
        check_partners(present, settings.voting.mask_partners, owner="fedct")
    turn = clients.turn(state, cohort, key)
    label, weight, voters = state.label, state.weight, turn.voters
    attendance, communication = clients.attendance(voters), Communication()
    more, least, num_asked = Metrics(), fewest_clients(sums), len(turn.sent)
    if sums == "plaintext":
        agreed = _agreed_in_the_clear(settings, turn, communication) if num_asked else None
    else:
        agreed = _agreed_under_masks(settings, clients, turn, number, attendance, communication)
    if attendance is not None:
        more["left"] = len(attendance.left)
        voters = np.where(np.isin(voters, attendance.summed), voters, -1)
    num_voters = int(np.sum(voters >= 0))
    if agreed is not None and num_voters >= least:
        label, weight, soft = map(np.asarray, agreed)
        values = settings.num_classes + int(np.any(label < 0))
        communication.down("consensus", num_asked * label_bytes(len(label), values))
        has_target = soft.any(axis=1)
        if has_target.any():
            more["agreement"] = float(np.mean(soft[has_target].max(axis=1)))
    elif num_asked:
        logging.warning(
            "fedct: no consensus in round %d: %d of %d clients that answer stay in the sum, which is of "
            "%d or more",
            *(number, num_voters, num_asked, least),
        )
    turns = with_turns(state.turns, voters)
    after = FedCTState(turn.learner, label, weight, turns, count(turn.rows), count(number))
    metrics: Metrics = {
        **turn.metrics,
        "voters": num_voters,
        "consensus_change": float(np.mean(label != state.label)),
        "abstained": float(np.mean(label < 0)),
        **more,
    }
    if settings.privacy.has_noise:
        metrics |= settings.privacy.metrics(int(turns.max(initial=0)), turn.rows)
    return after, {**metrics, "communication": communication.metrics()}


def _agreed_in_the_clear(settings: CoTraining, turn: Turn, communication: Communication) -> Agreed:
    """Line 11, where the server has each client's labels."""
    communication.up("votes", sum(len(message.content) for message in turn.sent.values()))
    marks = [
        settings.unpacked(message.content, abstains=message.abstains)
        for message in turn.sent.values()
    ]
    total = sum(client_marks.astype(np.int32) for client_marks in marks)
    return _of_total(settings, np.asarray(total), len(marks), turn.rows)


def _agreed_under_masks(
    settings: CoTraining,
    clients: Clients,
    turn: Turn,
    round_number: int,
    attendance: Attendance | None,
    communication: Communication,
) -> Agreed | None:
    """Line 11 from a sum in a fresh session; None, and nothing is sent, with fewer than two clients."""
    from jaxfed.secure.session.neighborhoods import enough_partners
    from jaxfed.secure.vote_sums import vote_histogram

    ids, shape = list(turn.sent), (len(settings.public), settings.num_classes)
    if len(ids) < fewest_clients(settings.voting.sums):
        if attendance is not None:
            attendance.note((), ())
        return None
    partners = enough_partners(len(ids), settings.voting.mask_partners)
    summands: list[Any] = [turn.sent[client].summand for client in ids]
    with clients.session(ids, partners, round_number, attendance) as session:
        total = vote_histogram(
            session,
            dict(enumerate(summands)),
            is_resilient=settings.voting.sums == "masked_resilient",
            shape=shape,
        )
    number = len(ids)
    if attendance is not None:
        attendance.note(session.contributors, session.presence.gone)
        number = len(attendance.summed)
    communication.add(session.communication())
    if total is None:
        total, number = np.zeros(shape), 0
    return _of_total(settings, total.astype(np.int32), number, turn.rows)


def _of_total(settings: CoTraining, total: np.ndarray, number: int, rows: int) -> Agreed:
    """Return the consensus by the sum, int32 [U, C], of this number of clients' marks."""
    if settings.privacy.has_noise:
        total = settings.privacy.votes(total, number, rows or len(settings.public))
    return largest_share(jnp.asarray(total), threshold=settings.voting.least_share)


def estimated_rows(
    labels_of: Callable[[Cohort], np.ndarray],
    cohort: Cohort,
    client_id: np.ndarray,
    public: np.ndarray,
    num_classes: int,
    key: jax.Array,
    *,
    num_neighbors: int,
) -> int:
    """Empirical sensitivity r of clients' labels of U to one of their examples: not a bound.

    FedCT (Section 5) uses the largest change among 100 neighbors of a client's data. Here client i with
    h_i = A(D_i u P, h) draws n of its examples and replaces each, one at a time, by a public example with a
    label drawn uniformly; from the same model h, by the same key,

        r_i = max over n neighbors D' of #{u in U : A(D' u P, h)(u) != h_i(u)},        r = max_i r_i

    It is no bound (`jaxfed.privacy.xor_mechanism`): the next neighbor may change more, and h stays the
    same although it has seen the example in earlier rounds. Nor is r itself private. A client with one
    example has r_i = |U|, and so has a client whose learner fails on a neighbor. r is 1 or more; 0 if no
    client has an example of its own.

    Args:
        labels_of: a cohort of one client -> its labels int32 [U], -1 for an abstention; trains it as the
            round does.
        cohort: the round's.
        client_id: int32, the clients that send labels; -1 for none.
        public: U, [U, ...], of clients' dtype.
        num_classes: C.
        key: typed; each client's neighbors are drawn from it by the client's number.
        num_neighbors: n.

    Cost: n + 1 trainings of each client, one after another. Estimators store their training data, here n
    copies of each client's examples.
    """
    most = 0
    for client in sorted(int(one) for one in client_id if one >= 0):
        (row,) = np.flatnonzero(np.asarray(cohort.client_id) == client)
        one = Cohort(
            np.asarray([client], np.int32),
            *(np.asarray(field[row])[None] for field in cohort[1:]),
        )
        is_labeled = one.y >= 0
        if is_labeled.sum() == 1:
            most = len(public)
        if is_labeled.sum() < 2:
            continue
        client_key = jax.random.fold_in(key, client)
        seed = int(jax.random.randint(client_key, (), 0, np.iinfo(np.int32).max))
        rng = np.random.default_rng(seed)
        spare = (
            np.asarray(public)[rng.integers(len(public), size=num_neighbors)],
            rng.integers(num_classes, size=num_neighbors).astype(one.y.dtype),
        )
        changes = estimate(
            partial(_labels_with, labels_of, one),
            *(np.asarray(one.x)[is_labeled], np.asarray(one.y)[is_labeled]),
            spare,
            seed=seed,
        )
        most = max(most, int(changes.max()), 1)
    return most


def _labels_with(
    labels_of: Callable[[Cohort], np.ndarray], one: Cohort, new_x: np.ndarray, new_y: np.ndarray
) -> np.ndarray:
    """Labels of U after the labeled rows of a cohort of one client are replaced by other examples."""
    is_labeled, x, y = one.y >= 0, np.array(one.x), np.array(one.y)
    x[is_labeled], y[is_labeled] = new_x, new_y
    return labels_of(one._replace(x=x, y=y))


def packed(privacy: LabelPrivacy, marks: np.ndarray) -> tuple[bytes, bool]:
    """Encode class indicators bool [U, C], and say whether labels are missing."""
    if privacy.release == "xor":
        return np.packbits(marks).tobytes(), False
    labels, num_classes = labels_of(marks), marks.shape[1]
    abstains = bool((labels < 0).any())
    width = (num_classes + abstains - 1).bit_length()
    labels = np.where(labels < 0, num_classes, labels)
    bits = labels[:, None] >> np.arange(width - 1, -1, -1) & 1
    return np.packbits(bits.astype(bool)).tobytes(), abstains


def unpacked(
    privacy: LabelPrivacy, content: bytes, shape: tuple[int, int], *, abstains: bool
) -> np.ndarray:
    """Decode what `packed` has encoded, bool [U, C].

    Raises:
        Unusable: another number of bytes, or a label that is no class.
    """
    is_bits, (num_public, num_classes) = privacy.release == "xor", shape
    width = num_classes if is_bits else (num_classes + abstains - 1).bit_length()
    if len(content) != -(-num_public * width // 8):
        raise Unusable(f"{len(content)} bytes of {'bits' if is_bits else 'labels'}")
    flat = np.unpackbits(np.frombuffer(content, np.uint8), count=num_public * width)
    bits = flat.reshape(num_public, width)
    if is_bits:
        return bits.astype(bool)
    labels = (bits @ (1 << np.arange(width - 1, -1, -1))).astype(np.int32)
    if (labels >= num_classes + abstains).any():
        raise Unusable("a label that is no class")
    return one_hot(labels, num_classes)


def labels_of(marks: np.ndarray) -> np.ndarray:
    """The labels int32 [U] of class indicators of at most one class each; -1 for none."""
    return marks @ np.arange(1, marks.shape[1] + 1, dtype=np.int32) - 1
