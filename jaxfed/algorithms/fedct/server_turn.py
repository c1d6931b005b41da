"""The server's part of a round of FedCT: the consensus of what clients sent (lines 10 to 12)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from absl import logging

from jaxfed.algorithms.fedct.client_turn import Message
from jaxfed.algorithms.fedct.label_noise import agreed_under_noise
from jaxfed.algorithms.fedct.label_privacy import LabelPrivacy
from jaxfed.federation.algorithm import Metrics
from jaxfed.federation.communication import label_bytes
from jaxfed.training.consensus.client_sums import ClientSums, fewest_clients
from jaxfed.training.consensus.consensus import Agreed, Consensus
from jaxfed.training.consensus.opened_tally import agreed


class Vote(NamedTuple):
    """Result of a round's vote at the server.

    Fields:
        label: int32 [U], L; -1 where clients abstained.
        weight: float32 [U].
        voters: int32 [K], the clients in the consensus; -1 in other rows.
        metrics: those of the vote.
    """

    label: np.ndarray
    weight: np.ndarray
    voters: np.ndarray
    metrics: Metrics


class Sent(NamedTuple):
    """Messages of a round's clients.

    Fields:
        answers: int32 [K, U] or float32 [K, U, C]. Under masks and under noise only the shape is read, if
            clients are in other processes.
        voters: int32 [K], the clients that sent something; -1 in other rows.
        marks: labels with noise, bool [U, C], of each of them; None: answers, or marks that clients of other
            processes add under masks.
    """

    answers: np.ndarray
    voters: np.ndarray
    marks: list[np.ndarray] | None


@dataclass(frozen=True, eq=False)
class Election:
    """The server's settings, the same in every round.

    Attributes:
        consensus: the rule.
        num_classes: C.
        privacy: noise on labels.
    """

    consensus: Consensus
    num_classes: int
    privacy: LabelPrivacy

    def vote(self, before: Message, sent: Sent, sums: ClientSums, round_number: int) -> Vote:
        """Find L, and the clients whose answers it is of; without a consensus L stays.

        Args:
            before: what clients were sent, with the r that noise hides.
            sent: what they answered.
            sums: how answers are added, and the clients that left.
            round_number: of this round, for a warning.
        """
        label, weight, voters = before.label, before.weight, sent.voters
        metrics, least = Metrics(), fewest_clients(sums.protocol)
        num_asked = int(np.sum(voters >= 0))
        if num_asked:
            found = self.agreed(sent, before.rows, sums)
        if sums.attendance is not None:
            metrics["left"] = len(sums.attendance.left)
            voters = np.where(np.isin(voters, sums.attendance.summed), voters, -1)
        num_voters = int(np.sum(voters >= 0))
        if num_voters >= least:
            label, weight, soft = map(np.asarray, found)
            values = self.num_classes + int(np.any(label < 0))
            sums.communication.down("consensus", num_asked * label_bytes(len(label), values))
            is_told = soft.any(axis=1)
            if is_told.any():
                metrics["agreement"] = float(np.mean(soft[is_told].max(axis=1)))
        elif num_asked:
            logging.warning(
                "fedct: no consensus in round %d: %d of %d clients that answer stay in the sum, which is of "
                "%d or more",
                *(round_number, num_voters, num_asked, least),
            )
        counts = {
            "voters": num_voters,
            "consensus_change": float(np.mean(label != before.label)),
            "abstained": float(np.mean(label < 0)),
        }
        return Vote(label, weight, voters, {**counts, **metrics})

    def agreed(self, sent: Sent, rows: int, sums: ClientSums) -> Agreed:
        """Line 11: the consensus of one client or more, on labels with noise if `privacy` has some."""
        if self.privacy.has_noise:
            shape = sent.answers.shape[1], self.num_classes
            return agreed_under_noise(
                self.privacy,
                rows,
                self.consensus,
                sent.marks,
                shape,
                sums,
                num_clients=int(np.sum(sent.voters >= 0)),
            )
        return agreed(self.consensus, sent.answers, sent.voters, sums, num_classes=self.num_classes)
