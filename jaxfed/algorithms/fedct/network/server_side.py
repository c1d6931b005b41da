"""The server's side of FedCT on a network: it asks each client for its turn, and finds the consensus.

It has no model. What it can measure is the labels of U that clients agree on; the accuracy of a client's
model is the client's to measure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np

from jaxfed.algorithms.fedct.client_turn import ClientWork, Message
from jaxfed.algorithms.fedct.network import messages, summing_client
from jaxfed.algorithms.fedct.network.messages import TURN
from jaxfed.algorithms.fedct.server_turn import Election, Sent
from jaxfed.errors import UsageError
from jaxfed.federation.algorithm import Metrics
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.communication import Communication
from jaxfed.federation.departures import Departure
from jaxfed.federation.sides import Ask, Unusable
from jaxfed.learners.client_fit import count, most_turns, with_turns
from jaxfed.secure import vote_sums
from jaxfed.secure.row_sums import server_sums
from jaxfed.secure.session.neighborhoods import check_partners, enough_partners
from jaxfed.secure.session.network import exchanges
from jaxfed.secure.session.network.remote_session import RemoteSession, Roles
from jaxfed.training.consensus.client_sums import ClientSums, ConsensusSums
from jaxfed.training.consensus.dropout import Attendance

_ROLES: Roles = {
    vote_sums.client: summing_client.VOTES,
    server_sums.client: summing_client.NUMBERS,
}
_SPARSE_ROLES: Roles = {
    vote_sums.client: summing_client.SPARSE_VOTES,
    server_sums.client: summing_client.SPARSE_NUMBERS,
}


def check_network(work: ClientWork, departures: Sequence[Departure]) -> None:
    """Check that these settings run on a network.

    Raises:
        UsageError: they do not.
    """
    if work.privacy.has_noise and work.privacy.sensitivity == "estimated":
        raise UsageError(
            "does not run on a network",
            key="sensitivity",
            owner="fedct",
            value="estimated",
            allowed="use 'rows' or 'stability'",
        )
    if departures:
        raise UsageError(
            "clients of a network leave by themselves",
            key="presence",
            owner="fedct",
            value=len(departures),
            allowed="use ()",
        )


@dataclass(frozen=True, eq=False)
class CoTrainingServer:
    """The server of one run.

    Attributes:
        work: the clients' settings.
        election: the server's.
        sums: how answers are added.
        mask_partners: of each client, under masks; 0: all.
        ask: reaches the clients.
    """

    work: ClientWork
    election: Election
    sums: ConsensusSums
    mask_partners: int
    ask: Ask

    def round(self, state: Any, cohort: Cohort, key: jax.Array) -> tuple[Any, Metrics]:
        """Ask the clients for their turns, then vote; the state is the simulation's without models."""
        fit_key, *_ = jax.random.split(key, 3)
        number, rows = int(state.round) + 1, int(state.rows)
        ids = np.sort(np.asarray(cohort.client_id, np.int32))
        check_partners(int(np.sum(ids >= 0)), self.mask_partners, owner="fedct")
        replies = self.turns(ids, state, fit_key, number)
        voters = np.array(
            [c if c in replies and replies[c]["speaks"] else -1 for c in ids], np.int32
        )
        sums = _NetworkSums(self.sums, voters, self.ask, number, key, self.mask_partners)
        sent = self.sent(voters, replies)
        message = Message(state.label, state.weight, rows)
        vote = self.election.vote(message, sent, sums, number)
        after = state._replace(
            label=vote.label,
            weight=vote.weight,
            turns=with_turns(state.turns, vote.voters),
            round=count(number),
        )
        metrics: Metrics = {**_metrics(list(replies.values())), **vote.metrics}
        if self.work.privacy.has_noise:
            metrics |= self.work.privacy.metrics(most_turns(after.turns), rows)
        return after, {**metrics, "communication": sums.communication.metrics()}

    def turns(
        self, ids: np.ndarray, state: Any, fit_key: jax.Array, number: int
    ) -> Mapping[int, Any]:
        """Return each client's reply to its turn."""
        request = {
            "label": np.asarray(state.label),
            "weight": np.asarray(state.weight),
            "rows": int(state.rows),
            "round": number,
            "key": np.asarray(jax.random.key_data(fit_key)),
        }
        requests = {int(client): request for client in ids if client >= 0}
        return self.ask(
            TURN, requests, messages.reply_form(), round_number=number, check=self.check
        )

    def check(self, client: int, reply: Mapping[str, Any]) -> None:
        """Check the values of a client's reply.

        Raises:
            Unusable: answers or metrics that it cannot have computed.
        """
        del client
        if reply["clients"] not in (0, 1) or not -1 <= reply["fit_accuracy"] <= 1:
            raise Unusable("metrics of a fit that are out of their range")
        if self.sums == "plaintext" and reply["speaks"]:
            self.unpacked(reply)
        elif reply["answers"]:
            raise Unusable("answers that were not asked for")

    def unpacked(self, reply: Mapping[str, Any]) -> np.ndarray:
        """Decode the answers of a reply, or labels with noise."""
        has_noise = self.work.privacy.has_noise
        unpack = messages.unpacked_marks if has_noise else messages.unpacked_answers
        return unpack(self.work, reply["answers"], abstains=reply["abstains"])

    def sent(self, voters: np.ndarray, replies: Mapping[int, Any]) -> Sent:
        """Return all clients' messages as the election takes them."""
        num_public, has_labels = len(self.work.public), self.work.question == "predict"
        shape = (num_public,) if has_labels else (num_public, self.work.num_classes)
        answers = np.full((len(voters), *shape), -1 if has_labels else 0).astype(
            np.int32 if has_labels else np.float32
        )
        if self.sums != "plaintext":
            return Sent(answers, voters, None)
        found = {int(c): self.unpacked(replies[int(c)]) for c in voters if c >= 0}
        if self.work.privacy.has_noise:
            return Sent(answers, voters, list(found.values()))
        for row, client in enumerate(voters.tolist()):
            if client >= 0:
                answers[row] = found[client]
        return Sent(answers, voters, None)


class _NetworkSums(ClientSums):
    """Sums of the voters' answers, under masks in a session of letters; addresses are their places."""

    def __init__(
        self,
        sums: ConsensusSums,
        voters: np.ndarray,
        ask: Ask,
        number: int,
        key: jax.Array,
        mask_partners: int,
    ) -> None:
        attendance = None if sums == "plaintext" else Attendance(voters, [], key)
        super().__init__(sums, Communication(), attendance, mask_partners)
        self._ids, self._ask, self._number = voters[voters >= 0].tolist(), ask, number

    def total(
        self,
        num_clients: int,
        shape: tuple[int, int],
        own: Callable[[int], np.ndarray],
        *,
        are_marks: bool,
    ) -> np.ndarray | None:
        """The sum of the clients' matrices; `own` is not called."""
        del own
        assert self.attendance is not None
        if num_clients < 2:
            self.attendance.note((), ())
            return None
        carry = exchanges.carried(self._ask, self._ids, {"round": self._number})
        partners = enough_partners(num_clients, self._mask_partners)
        roles = _SPARSE_ROLES if 0 < partners < num_clients - 1 else _ROLES
        session = RemoteSession(num_clients, carry, roles, mask_partners=partners)
        driver = vote_sums.vote_histogram if are_marks else server_sums.server_sums
        found = partial(driver, is_resilient=self.protocol == "masked_resilient", shape=shape)
        total = found(session, dict.fromkeys(session.clients))
        session.later_all(session.clients)
        session.flush(exchanges.END)
        self.attendance.note(session.contributors, session.presence.gone)
        self.communication.add(session.communication())
        kind = np.int32 if are_marks else np.float32
        return np.zeros(shape, kind) if total is None else total.astype(kind)


def _metrics(replies: list[Any]) -> Metrics:
    """Means over the clients that have a metric."""
    found: Metrics = {
        "failed_clients": sum(reply["failed"] for reply in replies),
        "clients": sum(reply["clients"] for reply in replies),
    }
    for name in ("train_loss", "fit_accuracy"):
        values = [reply[name] for reply in replies if reply[name] >= 0]
        if values:
            found[name] = float(np.mean(values))
    return found
