"""Privacy guarantee of a release of labels, by the source of r, the number of labels one example changes.

eps of a release is spent on r labels (`jaxfed.privacy.label_release`, `xor_mechanism`). The source of r
determines the name of the eps of R releases (`jaxfed.privacy.label_sensitivity`):

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

from typing import Literal, NamedTuple

from jaxfed.errors import UsageError
from jaxfed.privacy.composition import approximate, basic
from jaxfed.privacy.label_sensitivity import stability_bound, trivial_rows

Sensitivity = Literal["rows", "stability", "estimated"]

_NAMES = {"rows": "epsilon", "stability": "epsilon_if_stable", "estimated": "epsilon_estimated"}


class LabelPromise(NamedTuple):
    """Source of r; made by `label_promise`.

    Fields:
        sensitivity: the source.
        rows: r if given; 0: all of U.
        rate: of stability, e of Proposition 2.
        failure: delta of Proposition 2.
    """

    sensitivity: Sensitivity
    rows: int
    rate: float
    failure: float

    def known_rows(self, num_public: int) -> int:
        """r before any training; 0 if it is to be estimated."""
        if self.sensitivity == "estimated":
            return 0
        if self.sensitivity == "stability":
            return max(1, stability_bound(num_public, self.rate, self.failure))
        most = trivial_rows(num_public)
        return min(self.rows or most, most)

    def told(self, epsilon: float, releases: int, delta: float, rows: int) -> dict[str, float]:
        """Metrics of all releases composed, under the name that belongs to the source of r.

        Args:
            epsilon: of one release.
            releases: R.
            delta: of the composition.
            rows: r as used; reported unless given.
        """
        name = _NAMES[self.sensitivity]
        told = {
            name: basic(epsilon, releases),
            f"{name}_approximate": approximate(epsilon, releases, delta),
        }
        if self.sensitivity != "rows":
            told["sensitivity_rows"] = rows
        if self.sensitivity == "stability":
            told["stability_failure"] = min(1.0, releases * self.failure)
        return told


def label_promise(
    sensitivity: Sensitivity, *, rows: int, stability_rate: float, stability_delta: float
) -> LabelPromise:
    """Return the source of r; check that the keys go together.

    Args:
        sensitivity: source of r.
        rows: r, with "rows"; 0 is all of U.
        stability_rate: e, with "stability", and above 0.
        stability_delta: of Proposition 2, in (0, 1/2].

    Raises:
        UsageError: a key of another source, or a missing key of this one.
    """
    if rows and sensitivity != "rows":
        raise UsageError(f"rows={rows}: allowed is 0 with sensitivity={sensitivity!r}")
    if (sensitivity == "stability") != (stability_rate > 0):
        allowed = "numbers above 0" if sensitivity == "stability" else "0"
        raise UsageError(
            f"stability_rate={stability_rate}: allowed are {allowed} with sensitivity={sensitivity!r}"
        )
    return LabelPromise(sensitivity, rows, stability_rate, stability_delta)
