"""Settings of FedCT's vote: how the clients' labels become one for all (Algorithm 1, line 11)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from jaxfed.errors import UsageError
from jaxfed.federation.departures import Departure
from jaxfed.settings import Ge, Note, Share, check
from jaxfed.training.consensus.client_sums import ConsensusSums, departures_of

_LEAST_SHARE = (
    0.8  # of `qualified_majority`; one of two that are commented out in the authors' code
)


@dataclass(frozen=True)
class Voting:
    """The rule of the consensus, and the sum that it is computed from.

    Attributes:
        consensus: "majority"; "qualified_majority", which abstains below a share of the votes; or "staple",
            the most likely class under an error model for each client.
        threshold: least share of the votes, or posterior probability for "staple", that a label needs; 0 is
            the rule's default: 0.8 for "qualified_majority", none for "staple".
        sums: protocol by which the server adds what clients send.
        mask_partners: with `sums="masked_resilient"`, the number of other clients with which a client shares
            masks and secrets; 0: all of them. It must be enough if 5 % of the clients collude and 30 % leave
            (`jaxfed.secure.session.neighborhoods`).
        presence: clients that leave, and their stage of a sum under masks: "CLIENT@STAGE" or "SHARE%@STAGE"
            (`jaxfed.training.consensus.client_sums`).
    """

    consensus: Literal["majority", "qualified_majority", "staple"] = "majority"
    threshold: Share = 0.0
    sums: ConsensusSums = "plaintext"
    mask_partners: Annotated[int, Ge(0), Note("even, 0 is all")] = 0
    presence: Annotated[Sequence[str], Note("each 'CLIENT@STAGE' or 'SHARE%@STAGE'")] = ()

    def __post_init__(self) -> None:
        """Reject settings that do not go together."""
        check(self)
        if self.threshold and self.consensus == "majority":
            raise UsageError(
                "consensus='majority' has no such setting",
                key="threshold",
                value=self.threshold,
                allowed="use it with 'qualified_majority' or 'staple'",
            )
        if self.sums != "plaintext" and self.consensus == "staple":
            raise UsageError(
                "consensus='staple' needs every client's labels",
                key="sums",
                value=self.sums,
                allowed="use 'plaintext'",
            )
        self.departures()
        if self.mask_partners and self.sums != "masked_resilient":
            raise UsageError(
                f"sums={self.sums!r} has no partners to choose",
                key="mask_partners",
                value=self.mask_partners,
                allowed="set sums='masked_resilient', or use 0",
            )

    @property
    def least_share(self) -> float:
        """Least share of the votes that a label needs; 0: the most voted one needs none."""
        is_qualified = self.consensus == "qualified_majority"
        return self.threshold or (_LEAST_SHARE if is_qualified else 0.0)

    def departures(self) -> list[Departure]:
        """Return the planned departures.

        Raises:
            UsageError: an entry of `presence` that is no departure, or a stage that these sums do not have.
        """
        return departures_of(self.presence, self.sums, "presence", "fedct")
