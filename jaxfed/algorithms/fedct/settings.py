"""Settings of FedCT: the vote, and noise on the labels that clients send, with its guarantee (DP-FedCT).

    M_k   = release(v_k)   at every client that votes      (`xor_mechanism`, `randomized_response`)
    B     = sum_k M_k      in the clear, or under masks
    n_hat = estimated votes for each class, from B         the tally of the consensus

In a simulation noise is drawn from a key, so runs can be repeated. This measures the cost of noise. It
protects nobody from those who know the seed. On a network each client draws from its operating system.

A client's noise spends eps on r labels, the number that one private example changes. The source of r
determines the name of the eps of R releases (`jaxfed.privacy.xor_mechanism`):

    rows        r is given, or |U|, the bound that always holds         epsilon
    stability   r by FedCT's Proposition 2 (arXiv 2310.05696)           epsilon_if_stable
    estimated   r is the largest change among sampled neighbors         epsilon_estimated

`epsilon` is a guarantee, provided that a given r is correct. `epsilon_if_stable` assumes a rate that the user
states, and that the proposition holds. Its proof has two gaps: it uses a mean change of the loss, where signs
cancel, as the probability that a label changes; and it treats labels that change together as independent.
If both were valid, each release would exceed r with probability delta, R of them with at most R delta
(`stability_failure`). `epsilon_estimated` guarantees nothing: the next neighbor may change more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Literal, get_args

import numpy as np

from jaxfed.errors import UsageError
from jaxfed.privacy import randomized_response as rr
from jaxfed.privacy import xor_mechanism
from jaxfed.privacy.composition import approximate, basic
from jaxfed.privacy.xor_mechanism import BITS_A_ROW, Condition, stability_bound
from jaxfed.secure.session.channel import Departure
from jaxfed.settings import Count, Ge, Gt, Le, Note, Positive, Probability, Share, check, when
from jaxfed.training.consensus import ConsensusSums, departures_of

Release = Literal["none", "xor", "randomized_response"]
Sensitivity = Literal["rows", "stability", "estimated"]

_NAMES = {"rows": "epsilon", "stability": "epsilon_if_stable", "estimated": "epsilon_estimated"}
_OF_NOISE = ("epsilon", "sensitivity", "rows", "condition")
_LEAST_SHARE = 0.8  # `qualified_majority`'s default; one of two in the authors' code, commented out


@dataclass(frozen=True)
class Voting:
    """The rule of the consensus, and the sum that it is computed from.

    Attributes:
        consensus: "majority", or "qualified_majority", which abstains below a share of the votes.
        threshold: least share of the votes that a label of "qualified_majority" needs; 0 is 0.8.
        sums: protocol by which the server adds what clients send.
        mask_partners: with `sums="masked_resilient"`, the number of other clients with which a client shares
            masks and secrets; 0: all of them. It must be enough if 5 % of the clients collude and 30 % leave
            (`jaxfed.secure.session.neighborhoods`).
        presence: clients that leave, and their stage of a sum under masks: "CLIENT@STAGE"
            (`jaxfed.training.consensus`).
    """

    consensus: Literal["majority", "qualified_majority"] = "majority"
    threshold: Annotated[Share, when("consensus", "qualified_majority")] = 0.0
    sums: ConsensusSums = "plaintext"
    mask_partners: Annotated[
        int, Ge(0), Note("even, 0 is all"), when("sums", "masked_resilient")
    ] = 0
    presence: Annotated[Sequence[str], Note("each 'CLIENT@STAGE'")] = ()

    def __post_init__(self) -> None:
        check(self)
        self.departures()

    @property
    def least_share(self) -> float:
        """Least share of the votes that a label needs; 0: the most voted one needs none."""
        return self.threshold or _LEAST_SHARE if self.consensus == "qualified_majority" else 0.0

    def departures(self) -> list[Departure]:
        """Return the planned departures.

        Raises:
            UsageError: an entry of `presence` that is no departure, or a stage that these sums do not have.
        """
        return departures_of(self.presence, self.sums, "presence", "fedct")


@dataclass(frozen=True)
class LabelPrivacy:
    """Noise on the labels that clients send.

    Attributes:
        release: noise on the labels that clients send; with "none" all settings of noise keep their defaults.
        epsilon: privacy budget of one communication of a client, with noise.
        sensitivity: source of r, the number of labels that one private example changes.
        rows: r, with sensitivity "rows", at most |U|; 0 is |U|.
        stability_rate: e of Proposition 2, with sensitivity "stability".
        stability_delta: probability with which Proposition 2 may fail.
        neighbors: neighboring data sets to try for each client, with sensitivity "estimated"; each is one
            more training.
        condition: condition on the flips of the XOR mechanism: "exact", or the "paper"'s, larger than
            necessary by sqrt(C).
        delta: delta of `epsilon_approximate`, which composes all communications.
    """

    release: Release = "none"
    epsilon: Positive = 1.0
    sensitivity: Sensitivity = "rows"
    rows: Annotated[int, Ge(0), Note("0 is all public examples"), when("sensitivity", "rows")] = 0
    stability_rate: Share = 0.0
    stability_delta: Annotated[float, Gt(0), Le(0.5)] = 1e-5
    neighbors: Count = 100
    condition: Condition = "exact"
    delta: Probability = 1e-5

    def __post_init__(self) -> None:
        """Reject wrong settings, such as an epsilon without noise, which would not hold."""
        check(self)
        if (self.sensitivity == "stability") != (self.stability_rate > 0):
            wrong = f"does not go with sensitivity={self.sensitivity!r}"
            allowed = "use a number above 0" if self.sensitivity == "stability" else "use 0"
            value = self.stability_rate
            raise UsageError(wrong, key="stability_rate", value=value, allowed=allowed)
        for field in fields(self):
            value = getattr(self, field.name)
            if not self.has_noise and field.name in _OF_NOISE and value != field.default:
                wrong = "is a setting of noise, and release='none' adds none"
                allowed = f"set release={' or '.join(map(repr, get_args(Release)[1:]))}"
                raise UsageError(wrong, key=field.name, value=value, allowed=allowed)

    @property
    def has_noise(self) -> bool:
        """True if labels are sent with noise."""
        return self.release != "none"

    def known_rows(self, num_public: int) -> int:
        """r before any training; 0 without noise, and if r is to be estimated."""
        if not self.has_noise or self.sensitivity == "estimated":
            return 0
        if self.sensitivity == "stability":
            return max(1, stability_bound(num_public, self.stability_rate, self.stability_delta))
        return min(self.rows or num_public, num_public)

    def released(
        self, labels: np.ndarray, rows: int, num_classes: int, draw: rr.DrawUniform
    ) -> np.ndarray:
        """Return the noisy release of labels int32 [n], -1 for none, as class indicators bool [n, C].

        Args:
            labels: one client's labels.
            rows: r.
            num_classes: C.
            draw: source of the noise.
        """
        if self.release == "randomized_response":
            sent = rr.randomize_labels(labels, draw, num_classes, self.epsilon / rows)
            return xor_mechanism.one_hot(sent, num_classes)
        marks, bits = xor_mechanism.one_hot(labels, num_classes), BITS_A_ROW * rows
        return xor_mechanism.release(marks, self.epsilon, bits, draw, condition=self.condition)

    def votes(self, total: np.ndarray, number: int, rows: int) -> np.ndarray:
        """Return n_hat, float32 [U, C]; `total` is the sum of `number` clients' noisy marks, int32 [U, C]."""
        num_classes = total.shape[1]
        if self.release == "xor":
            bits = BITS_A_ROW * rows
            flip = xor_mechanism.flip_probability(self.epsilon, bits, num_classes, self.condition)
            counts = xor_mechanism.unbiased_counts(total, number, flip)
        else:
            counts = rr.unbiased(total, num_classes, self.epsilon / rows)
        return counts.astype(np.float32)

    def metrics(self, releases: int, rows: int) -> dict[str, float]:
        """Metrics of R releases composed, under the name that belongs to the source of r.

        Args:
            releases: R.
            rows: r as used; reported unless given.
        """
        name = _NAMES[self.sensitivity]
        composed = {
            name: basic(self.epsilon, releases),
            f"{name}_approximate": approximate(self.epsilon, releases, self.delta),
        }
        if self.sensitivity != "rows":
            composed["sensitivity_rows"] = rows
        if self.sensitivity == "stability":
            composed["stability_failure"] = min(1.0, releases * self.stability_delta)
        return composed
