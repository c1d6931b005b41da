"""Settings of FedCT's vote: how the clients' labels become one for all (Algorithm 1, line 11)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from jaxfed.errors import UsageError
from jaxfed.federation.departures import Departure
from jaxfed.settings import Ge, Note, Share, check
from jaxfed.training.consensus.client_sums import ConsensusSums
from jaxfed.training.consensus.consensus import Consensus, consensus_of
from jaxfed.training.consensus.dropout import departures_of


@dataclass(frozen=True)
class Voting:
    """The rule of the consensus, and the sum that it is computed from.

    Attributes:
        consensus: name of a rule in `jaxfed.training.consensus.consensus.CONSENSUS`: of labels or, for
            `confidence_weighted` and `soft_mean`, of probabilities, which are then what clients share.
        threshold: least share of the votes that a label needs; 0 is the rule's default.
        sums: protocol by which the server adds what clients send.
        mask_partners: with `sums="masked_resilient"`, the number of other clients with which a client shares
            masks and secrets; 0: all of them. It must be enough if 5 % of the clients collude and 30 % leave
            (`jaxfed.secure.session.neighborhoods`).
        presence: clients that leave, and their stage of a sum under masks: "CLIENT@STAGE" or "SHARE%@STAGE"
            (`jaxfed.training.consensus.dropout`).
    """

    consensus: str = "majority"
    threshold: Share = 0.0
    sums: ConsensusSums = "plaintext"
    mask_partners: Annotated[int, Ge(0), Note("even, 0 is all")] = 0
    presence: Annotated[Sequence[str], Note("each 'CLIENT@STAGE' or 'SHARE%@STAGE'")] = ()

    def __post_init__(self) -> None:
        """Reject an unknown consensus, and settings that do not go together."""
        check(self)
        self.rule(2)  # no condition depends on the number of classes
        self.departures()
        if self.mask_partners and self.sums != "masked_resilient":
            raise UsageError(
                f"sums={self.sums!r} has no partners to choose",
                key="mask_partners",
                value=self.mask_partners,
                allowed="set sums='masked_resilient', or use 0",
            )

    def rule(self, num_classes: int) -> Consensus:
        """Return the consensus.

        Raises:
            UsageError: no such consensus, a setting that it does not have, or a sum that it cannot use.
        """
        rule = consensus_of(self.consensus, num_classes, threshold=self.threshold)
        if self.sums != "plaintext" and rule.tally is None:
            raise UsageError(
                f"consensus={self.consensus!r} needs every client's labels",
                key="sums",
                value=self.sums,
                allowed="use 'plaintext'",
            )
        return rule

    def departures(self) -> list[Departure]:
        """Return the planned departures.

        Raises:
            UsageError: an entry of `presence` that is no departure, or a stage that these sums do not have.
        """
        return departures_of(self.presence, self.sums, "presence", "fedct")
