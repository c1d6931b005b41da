"""Run every attack that a kind of message admits, against every target that it may give away.

    labels, counts         gap; with shadows difficulty and, of labels, reference
    labels                 label_translations, label_noise: share of perturbed queries that have the label
                           (`jaxfed.audit.observations` states the number of queries)
    distances              nearest: minus the distance to the nearest point of another client
    probabilities          gap, loss, population; with shadows difficulty, reference, LiRA and RMIA, both
                           offline and online
    parameters             all of these, and the gradient's norm

(`jaxfed.privacy.membership` has the attacks.) Labels and counts give a share s(y) of the example's
class, with the loss 1 - s(y). Probabilities p have the loss -log p_y and
phi = log p_y - log sum_{c != y} p_c. Population scores of a client's model are that model's own answers; the
scores of all clients' targets form one sample.

An attack with shadow models runs once for each kind of shadow models available (`SHADOWS`). The kinds differ
in how closely they reproduce the method.

If a message is seen in several rounds (the attack epochs of FedCT's E.1), every round is attacked. Loss, LiRA
and gradient scores are attacked once more by their means over the rounds. The mean of a target is over the
rounds whose message scores it: a client that took part in one of two rounds has one score.

Vulnerability
-------------
A method's vulnerability is that of its strongest attack, chosen on one half of the targets and judged on the
other. The maximum of many AUCs is biased upward: among thirty attacks on a model that never saw the members,
one is well above 0.5 by chance. So the targets are halved at random, members and others alike. Targets that
the same attacks score are halved among themselves, because a client's message scores the targets of this
client alone. The attack that is best on one half is judged on the other, and vice versa:

    AUC = (AUC_1 + AUC_2) / 2,        Var = (Var_1 + Var_2) / 4

with DeLong's variances (`jaxfed.privacy.membership`), so the interval is as wide as that of an attack
chosen in advance. Over R repeats AUCs are averaged; their variance is the sum divided by R^2. The interval
covers the draw of examples, given these trainings. `spread`, the deviation over repeats, is the variation
between trainings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import expit

from jaxfed.audit.observations import AuditTargets, Observation, Shadows
from jaxfed.audit.views import SERVER
from jaxfed.privacy import membership
from jaxfed.privacy.membership import Area, Evidence
from jaxfed.random_streams import Stream

# Training of the shadow models: on their own labels alone; by the method itself.
SHADOWS = ("own_labels", "played")
OVER_ROUNDS = 0  # instead of a round's number: means over all
_SUMMABLE = ("loss", "lira_offline", "lira_online", "gradient_norm")
_TUNED_ON = 16  # reference models; each is attacked with the others for each value of a
_TINY = 1e-45

Scores = dict[str, np.ndarray]
Tuned = dict[int, tuple[Shadows, float]]  # by id(shadows), which it keeps alive


class Attacked(NamedTuple):
    """One attack on one kind of message.

    Fields:
        message: its name.
        round: the round it was sent in, or `OVER_ROUNDS`.
        attack: its name.
        score: float64 [n], larger for members; nan for targets that the message tells nothing about.
        shadows: the kind it needs, one of `SHADOWS`; "" for none.
        adversary: the party that has the message, a key of `jaxfed.audit.views.SEEN_BY`.
    """

    message: str
    round: int
    attack: str
    score: np.ndarray
    shadows: str = ""
    adversary: str = SERVER


def attacks(
    seen: Mapping[int, list[Observation]],
    targets: AuditTargets,
    label: np.ndarray,
    shadows: Callable[[Observation, int], Mapping[str, Shadows]],
) -> list[Attacked]:
    """Attack a method's messages.

    Args:
        seen: round -> messages observed in it.
        targets: n of them, m in the population.
        label: int32 [n + m].
        shadows: the shadow models for a observation in a round, by kind.
    """
    results: list[Attacked] = []
    tuned: Tuned = {}
    for number, observed in sorted(seen.items()):
        for one in observed:
            alone = observation_scores(one, targets, label, None)
            scored = [("", alone)]
            for how, known in shadows(one, number).items():
                scores = observation_scores(one, targets, label, known, tuned)
                scored.append((how, {name: scores[name] for name in scores if name not in alone}))
            results += [
                Attacked(one.message, number, name, score, how, one.adversary)
                for how, scores in scored
                for name, score in scores.items()
            ]
    return [*results, *_over_rounds(results)]


def observation_scores(
    seen: Observation,
    targets: AuditTargets,
    label: np.ndarray,
    shadows: Shadows | None,
    tuned: Tuned | None = None,
) -> Scores:
    """Attack -> float64 [n]; nan for targets without an answer. `tuned` caches RMIA's a."""
    number = len(targets.example)
    a = _tuned_a(shadows, label, number, {} if tuned is None else tuned)
    scores: Scores = {}
    for row, rows in enumerate(seen.asked_about(targets)):
        both = np.append(
            rows, np.arange(number, len(label))
        )  # a client's targets, and the population
        answers, of_both = seen.answers[row, both], label[both]
        known = None
        if shadows is not None and _has_outside(shadows.is_in[:, rows]):
            known = Shadows(shadows.is_in[:, rows], shadows.answers[:, both])
        if seen.kind == "distances":
            of_row = {"nearest": -answers[: len(rows), 0].astype(np.float64)}
        elif seen.kind in ("labels", "counts"):
            of_row = _of_marks(answers[: len(rows)], of_both[: len(rows)], known, seen.kind)
        else:
            of_row = _of_probabilities(answers, of_both, len(rows), known, a)
        if seen.norms.size:
            of_row["gradient_norm"] = -np.nan_to_num(seen.norms[row, rows]).astype(np.float64)
        if seen.translated.size:
            of_row["label_translations"] = seen.translated[row, rows].astype(np.float64)
        if seen.noisy.size:
            of_row["label_noise"] = seen.noisy[row, rows].astype(np.float64)
        for name, values in of_row.items():
            scores.setdefault(name, np.full(number, np.nan))[rows] = values
    # An attack that one client's shadows do not admit is dropped for the whole method.
    asked = np.unique(np.concatenate(seen.asked_about(targets)))
    return {name: score for name, score in scores.items() if not np.isnan(score[asked]).any()}


def _of_marks(answers: np.ndarray, label: np.ndarray, shadows: Shadows | None, kind: str) -> Scores:
    """Attacks on labels and on counts of labels: answers [n, C] for a row's targets."""
    share = np.take_along_axis(answers, label[:, None], axis=-1)[:, 0].astype(np.float64)
    scores = {"gap": share}
    if shadows is not None:
        probabilities = shadows.answers[:, : len(label)]
        wrong = (probabilities.argmax(axis=-1) != label).astype(np.float64)
        scores["difficulty"] = membership.difficulty_scores(1 - share, wrong, shadows.is_in)
        if kind == "labels":
            scores["reference"] = membership.reference_scores(1 - share, wrong, shadows.is_in)
    return scores


def _of_probabilities(
    answers: np.ndarray, label: np.ndarray, number: int, shadows: Shadows | None, a: float
) -> Scores:
    """Attacks on probabilities [n + m, C] for a row's n = `number` targets and the population."""
    phi, others = np.split(_log_odds(answers, label), [number])
    loss = _loss(phi)
    scores = {
        "gap": (answers[:number].argmax(axis=-1) == label[:number]).astype(np.float64),
        "loss": -loss,
        "population": membership.population_scores(loss, _loss(others)),
    }
    if shadows is None:
        return scores
    is_in = shadows.is_in
    reference_phi, population_phi = np.split(_log_odds(shadows.answers, label), [number], axis=1)
    examples = Evidence(expit(phi), expit(reference_phi))
    outsiders = Evidence(expit(others), expit(population_phi))
    scores["difficulty"] = membership.difficulty_scores(loss, _loss(reference_phi), is_in)
    scores["reference"] = membership.reference_scores(loss, _loss(reference_phi), is_in)
    scores["lira_offline"] = membership.lira_offline(phi, reference_phi, is_in)
    scores["rmia_offline"] = membership.rmia_offline(examples, is_in, outsiders, a)
    if is_in.any(axis=0).all() and (is_in.sum(axis=0) > 1).any():
        scores["lira_online"] = membership.lira_online(phi, reference_phi, is_in)
        scores["rmia_online"] = membership.rmia_online(examples, is_in, outsiders)
    return scores


def _has_outside(is_in: np.ndarray) -> bool:
    """True if each target has a model trained without it, and at least one target has two or more."""
    number = (~is_in).sum(axis=0)
    return bool((number > 0).all() and (number > 1).any())


def _tuned_a(shadows: Shadows | None, label: np.ndarray, number: int, tuned: Tuned) -> float:
    """RMIA's a, tuned with reference models as targets; the authors' 0.3 if there are too few."""
    if shadows is None:
        return membership.DEFAULT_A
    if id(shadows) not in tuned:
        few = slice(_TUNED_ON)
        is_in = shadows.is_in[few]
        some = is_in.any(axis=0) & ((~is_in).sum(axis=0) > 1)
        p, others = np.split(expit(_log_odds(shadows.answers[few], label)), [number], axis=1)
        a = membership.DEFAULT_A
        if len(is_in) >= 4 and all(row.any() and not row.all() for row in is_in[:, some]):
            a = membership.tuned_a(p[:, some], is_in[:, some], others)
        tuned[id(shadows)] = shadows, a
    return tuned[id(shadows)][1]


def _over_rounds(results: list[Attacked]) -> list[Attacked]:
    groups: dict[tuple[str, str, str], list[Attacked]] = {}
    for one in results:
        if one.attack in _SUMMABLE:
            groups.setdefault((one.message, one.attack, one.shadows), []).append(one)
    return [
        each[0]._replace(round=OVER_ROUNDS, score=_mean_of_known([one.score for one in each]))
        for each in groups.values()
        if len(each) > 1
    ]


def _mean_of_known(scores: list[np.ndarray]) -> np.ndarray:
    """Mean of [n] arrays, entry by entry, without nan; nan where all are."""
    known = (~np.isnan(scores)).sum(axis=0)
    total = np.nansum(scores, axis=0)
    return np.divide(total, known, out=np.full(total.shape, np.nan), where=known > 0)


def _log_odds(probabilities: np.ndarray, label: np.ndarray) -> np.ndarray:
    """phi of probabilities [..., n, C], from the sum of the other classes, as p may have rounded to 1."""
    return membership.log_odds_of_logits(np.log(np.maximum(probabilities, _TINY)), label)


def _loss(phi: np.ndarray) -> np.ndarray:
    return np.logaddexp(0, -phi)


class Verdict(NamedTuple):
    """The strongest of some attacks.

    Fields:
        area: AUC with its interval.
        tpr_at_1_percent: true positive rate at a false positive rate of at most 1 percent.
        tpr_at_none: the same without false positives.
        attacks: message, round, attack and shadows of the two chosen attacks.
        members: number of members judged.
        others: number of non-members judged.
        others_at_once: fewest non-members that one threshold was judged by: the resolution of a false
            positive rate.
        spread: deviation of the AUC over repeats, divisor R - 1; nan for one repeat.
    """

    area: Area
    tpr_at_1_percent: float
    tpr_at_none: float
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
    _, member = _scored(attacked, is_member, among)
    return bool(min(member.sum(), (~member).sum()) >= 2)


def _scored(
    attacked: Attacked, is_member: np.ndarray, among: np.ndarray | slice
) -> tuple[np.ndarray, np.ndarray]:
    """Scores that are there, and which of them are members'."""
    score = attacked.score[among]
    is_scored = ~np.isnan(score)
    return score[is_scored], is_member[among][is_scored]


def each(
    attacked: Attacked, is_member: np.ndarray, among: np.ndarray | slice = slice(None)
) -> Verdict:
    """Judge one attack by itself, on the targets with a score; arguments as `has_enough`."""
    score, member = _scored(attacked, is_member, among)
    return Verdict(
        membership.area_under_curve(score, member),
        membership.tpr_at_fpr(score, member, 0.01),
        membership.tpr_at_fpr(score, member, 0.0),
        ((attacked.message, attacked.round, attacked.attack, attacked.shadows),),
        int(member.sum()),
        int((~member).sum()),
        int((~member).sum()),
    )


def strongest(results: Sequence[Attacked], is_member: np.ndarray, seed: int) -> Verdict | None:
    """The strongest attack; None if no attack scores two members and two others in each half.

    Args:
        results: attacks on the same n targets.
        is_member: bool [n].
        seed: of the halves.
    """
    if not results:
        return None
    first = _first_half(is_member, ~np.isnan([one.score for one in results]), seed)
    halves = (first, ~first)
    results = [one for one in results if all(has_enough(one, is_member, half) for half in halves)]
    if not results:
        return None
    judged = []
    for half in halves:
        areas = [
            membership.area_under_curve(*_scored(one, is_member, ~half)).auc for one in results
        ]
        judged.append(each(results[int(np.argmax(np.round(areas, 12)))], is_member, half))
    return _mean(judged)


def over_repeats(verdicts: Sequence[Verdict]) -> Verdict:
    """Mean of one or more verdicts."""
    areas = [verdict.area.auc for verdict in verdicts]
    spread = float(np.std(areas, ddof=1)) if len(areas) > 1 else float("nan")
    return _mean(verdicts)._replace(spread=spread)


def _mean(verdicts: Sequence[Verdict]) -> Verdict:
    """Mean of independent verdicts."""
    auc = float(np.mean([one.area.auc for one in verdicts]))
    deviations = np.asarray([one.area.deviation for one in verdicts])
    deviation = float(np.sqrt(np.sum(np.square(deviations)))) / len(verdicts)
    at_1, at_none = np.mean([[one.tpr_at_1_percent, one.tpr_at_none] for one in verdicts], axis=0)
    return Verdict(
        membership.area_of(auc, deviation),
        float(at_1),
        float(at_none),
        tuple(dict.fromkeys(name for one in verdicts for name in one.attacks)),
        sum(one.members for one in verdicts),
        sum(one.others for one in verdicts),
        min(one.others_at_once for one in verdicts),
    )


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
