"""Vulnerability of a method: its strongest attack, chosen on one half of the targets, judged on the other.

The maximum of many AUCs is biased upward: among thirty attacks on a model that never saw the members, one is
well above 0.5 by chance. So the targets are halved at random, members and others alike. Targets that the same
attacks score are halved among themselves, because a client's message scores the targets of this client alone.
The attack that is best on one half is judged on the other, and vice versa:

    AUC = (AUC_1 + AUC_2) / 2,        Var = (Var_1 + Var_2) / 4

with DeLong's variances (`jaxfed.privacy.membership.roc`), so the interval is as wide as that of an attack
chosen in advance. Over R repeats AUCs are averaged; their variance is the sum divided by R^2. The interval
covers the draw of examples, given these trainings. `spread`, the deviation over repeats, is the variation
between trainings.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import norm

from jaxfed.audit.attacks import Attacked
from jaxfed.privacy.membership.roc import Area, Vulnerability, area_under_curve, vulnerability
from jaxfed.random_streams import Stream

_REACH = float(norm.ppf(0.975))


class Verdict(NamedTuple):
    """The strongest of some attacks.

    Fields:
        vulnerability: AUC with its interval, TPR at low FPR.
        attacks: message, round, attack and shadows of the two chosen attacks.
        members: number of members judged.
        others: number of non-members judged.
        others_at_once: fewest non-members that one threshold was judged by: the resolution of a false
            positive rate.
        spread: deviation of the AUC over repeats, divisor R - 1; nan for one repeat.
    """

    vulnerability: Vulnerability
    attacks: tuple[tuple[str, int, str, str], ...]
    members: int
    others: int
    others_at_once: int
    spread: float = float("nan")


def has_enough(
    attacked: Attacked, is_member: np.ndarray, among: np.ndarray | slice = slice(None)
) -> bool:
    """True if an attack scores two members and two others, the fewest that an interval needs.

    Args:
        attacked: the attack.
        is_member: bool [n].
        among: the targets that count, bool [n]; all of them by default.
    """
    scored = is_member[among][~np.isnan(attacked.score[among])]
    return min(scored.sum(), (~scored).sum()) >= 2


def each(attacked: Attacked, is_member: np.ndarray) -> Verdict:
    """Judge one attack by itself, on all targets with a score."""
    told = ~np.isnan(attacked.score)
    return Verdict(
        vulnerability(attacked.score[told], is_member[told]),
        (_name(attacked),),
        int(is_member[told].sum()),
        int((~is_member[told]).sum()),
        int((~is_member[told]).sum()),
    )


def strongest(found: Sequence[Attacked], is_member: np.ndarray, seed: int) -> Verdict | None:
    """The strongest attack; None if no attack scores two members and two others in each half.

    Args:
        found: attacks on the same n targets.
        is_member: bool [n].
        seed: of the halves.
    """
    if not found:
        return None
    first = _first_half(is_member, ~np.isnan([one.score for one in found]), seed)
    halves = (first, ~first)
    found = [one for one in found if all(has_enough(one, is_member, half) for half in halves)]
    if not found:
        return None
    judged, names, weights = [], [], []
    for half in halves:
        areas = [_area(one, is_member, ~half).auc for one in found]
        best = found[int(np.argmax(np.round(areas, 12)))]
        told = half & ~np.isnan(best.score)
        judged.append(vulnerability(best.score[told], is_member[told]))
        names.append(_name(best))
        weights.append((int(is_member[told].sum()), int((~is_member[told]).sum())))
    members, others = zip(*weights, strict=True)
    return Verdict(_mean(judged), tuple(names), sum(members), sum(others), min(others))


def over_repeats(verdicts: Sequence[Verdict]) -> Verdict:
    """Mean of one or more verdicts."""
    areas = [verdict.vulnerability.area.auc for verdict in verdicts]
    names = dict.fromkeys(name for verdict in verdicts for name in verdict.attacks)
    return Verdict(
        _mean([verdict.vulnerability for verdict in verdicts]),
        tuple(names),
        sum(verdict.members for verdict in verdicts),
        sum(verdict.others for verdict in verdicts),
        min(verdict.others_at_once for verdict in verdicts),
        float(np.std(areas, ddof=1)) if len(areas) > 1 else float("nan"),
    )


def _mean(judged: Sequence[Vulnerability]) -> Vulnerability:
    """Mean of independent vulnerabilities."""
    auc = float(np.mean([one.area.auc for one in judged]))
    deviations = np.asarray([one.area.deviation for one in judged])
    deviation = float(np.sqrt(np.sum(np.square(deviations)))) / len(judged)
    area = Area(
        auc, max(0.0, auc - _REACH * deviation), min(1.0, auc + _REACH * deviation), deviation
    )
    rates = np.mean([[one.tpr_at_1_percent, one.tpr_at_none] for one in judged], axis=0)
    return Vulnerability(area, *map(float, rates))


def _first_half(is_member: np.ndarray, is_scored: np.ndarray, seed: int) -> np.ndarray:
    """Half of the members and half of the others, to within one, bool [n].

    Args:
        is_member: bool [n].
        is_scored: bool [A, n], by each attack. Targets with equal columns are halved among themselves.
        seed: of the draw.
    """
    rng = np.random.default_rng((seed, Stream.AUDIT_HALVES))
    first = np.zeros(len(is_member), bool)
    group = np.unique(is_scored, axis=1, return_inverse=True)[1].reshape(-1)
    for side in (is_member, ~is_member):
        before = 0  # of odd groups every second one has the larger first half
        for number in range(group.max() + 1):
            rows = rng.permutation(np.flatnonzero(side & (group == number)))
            after = before + len(rows)
            first[rows[: after // 2 - before // 2]] = True
            before = after
    return first


def _area(attacked: Attacked, is_member: np.ndarray, half: np.ndarray) -> Area:
    told = half & ~np.isnan(attacked.score)
    return area_under_curve(attacked.score[told], is_member[told])


def _name(attacked: Attacked) -> tuple[str, int, str, str]:
    return attacked.message, attacked.round, attacked.attack, attacked.shadows


def messages(found: Iterable[Attacked]) -> dict[str, list[Attacked]]:
    """The attacks on each kind of message."""
    of: dict[str, list[Attacked]] = {}
    for one in found:
        of.setdefault(one.message, []).append(one)
    return of
