"""What a release of labels promises, by where the number of labels that one example changes is from.

eps of a release is spent on r labels (`jaxfed.privacy.label_release`, `xor_mechanism`). Where r is from says
what the eps of R releases may be called (`jaxfed.privacy.label_sensitivity`):

    rows        r is given, or |U|, the bound that always holds         epsilon
    stability   r by FedCT's Proposition 2 (arXiv 2310.05696)           epsilon_if_stable
    estimated   r is the largest change among neighbors that were tried  epsilon_estimated

`epsilon` is a promise, of a given r as far as that is one. `epsilon_if_stable` rests on a rate that somebody
states and on what the proposition's proof passes over: it takes a mean change of the loss, whose signs
cancel, for the probability that a label changes, and labels that change together for independent. Were all
that so, each release would miss r with probability delta, R of them with R delta at most
(`stability_failure`). `epsilon_estimated` promises nothing: the next neighbor may change more.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from jaxfed.errors import UsageError
from jaxfed.privacy.composition import approximate, basic
from jaxfed.privacy.label_sensitivity import stability_bound, trivial_rows

Sensitivity = Literal["rows", "stability", "estimated"]

_NAMES = {"rows": "epsilon", "stability": "epsilon_if_stable", "estimated": "epsilon_estimated"}


class LabelPromise(NamedTuple):
    """Where r is from; made by `label_promise`.

    Fields:
        sensitivity: which.
        rows: r where it is given; 0: all of U.
        rate: of stability, e of Proposition 2.
        failure: delta of Proposition 2.
    """

    sensitivity: Sensitivity
    rows: int
    rate: float
    failure: float

    def known_rows(self, num_public: int) -> int:
        """r before any training; 0 where it is to be estimated."""
        if self.sensitivity == "estimated":
            return 0
        if self.sensitivity == "stability":
            return max(1, stability_bound(num_public, self.rate, self.failure))
        most = trivial_rows(num_public)
        return min(self.rows or most, most)

    def told(self, epsilon: float, releases: int, delta: float, rows: int) -> dict[str, float]:
        """Metrics: all releases composed, by the name that is due to it; never another's.

        Args:
            epsilon: of one release.
            releases: R.
            delta: of the composition.
            rows: r as it was used; told where it was not given.
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
    """The choice, of keys that go together.

    Args:
        sensitivity: where r is from.
        rows: r, with "rows"; 0 is all of U.
        stability_rate: e, with "stability", and above 0.
        stability_delta: of Proposition 2, in (0, 1/2].

    Raises:
        UsageError: a key of another choice, or none of this one's.
    """
    if rows and sensitivity != "rows":
        raise UsageError(f"rows={rows}: allowed is 0 with sensitivity={sensitivity!r}")
    if (sensitivity == "stability") != (stability_rate > 0):
        allowed = "numbers above 0" if sensitivity == "stability" else "0"
        raise UsageError(
            f"stability_rate={stability_rate}: allowed are {allowed} with sensitivity={sensitivity!r}"
        )
    return LabelPromise(sensitivity, rows, stability_rate, stability_delta)
