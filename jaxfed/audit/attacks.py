"""Run every attack that a kind of message admits, against every target that it may give away.

    labels, counts         gap; with shadows difficulty and, of labels, reference
    labels                 label_translations, label_noise: share of perturbed queries that have the label
                           (`jaxfed.audit.evidence` states the number of queries)
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
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from scipy.special import expit

from jaxfed.audit.evidence import AuditTargets, Sighting
from jaxfed.audit.shadows import Shadows
from jaxfed.audit.views import SERVER
from jaxfed.privacy.membership import lira, rmia, single_model
from jaxfed.privacy.membership.evidence import log_odds_of_logits
from jaxfed.privacy.membership.reference_models import difficulty_scores, reference_scores

# Training of the shadow models: on their own labels alone; also on the attacked run's public targets; by
# the method itself.
SHADOWS = ("own_labels", "taught", "played")
OVER_ROUNDS = 0  # in the place of a round's number: means over all
_SUMMABLE = ("loss", "lira_offline", "lira_online", "gradient_norm")
_TUNED_ON = 16  # reference models; each is attacked with the others for each value of a
_TINY = 1e-45

Scores = dict[str, np.ndarray]
Tuned = dict[int, tuple[Shadows, float]]  # by id(shadows), which it keeps alive


class Attacked(NamedTuple):
    """One attack on one kind of message.

    Fields:
        message: its name.
        leaves: True if a party other than the client has it.
        round: the round it was sent in, or `OVER_ROUNDS`.
        attack: its name.
        score: float64 [n], larger for members; nan for targets that the message tells nothing about.
        shadows: the kind it needs, one of `SHADOWS`; "" for none.
        adversary: the party that has the message, a key of `jaxfed.audit.views.SEEN_BY`.
    """

    message: str
    leaves: bool
    round: int
    attack: str
    score: np.ndarray
    shadows: str = ""
    adversary: str = SERVER


class _Own(NamedTuple):
    """Answers of one model and of its shadows for a row's targets [n'] and the population [m]."""

    answers: np.ndarray
    label: np.ndarray
    population: np.ndarray
    population_label: np.ndarray
    shadows: Shadows | None


def attacks(
    seen: Mapping[int, list[Sighting]],
    targets: AuditTargets,
    label: np.ndarray,
    shadows: Callable[[Sighting, int], Mapping[str, Shadows]],
) -> list[Attacked]:
    """Attack a method's messages.

    Args:
        seen: round -> messages observed in it.
        targets: n of them, m in the population.
        label: int32 [n + m].
        shadows: the shadow models for a sighting in a round, by kind.
    """
    found: list[Attacked] = []
    tuned: Tuned = {}
    for number, sighted in sorted(seen.items()):
        for one in sighted:
            alone = sighting_scores(one, targets, label, None)
            scored = [("", alone)]
            for how, known in shadows(one, number).items():
                scores = sighting_scores(one, targets, label, known, tuned)
                scored.append((how, {name: scores[name] for name in scores if name not in alone}))
            found += [
                Attacked(one.message, one.leaves, number, name, score, how, one.adversary)
                for how, scores in scored
                for name, score in scores.items()
            ]
    return [*found, *_over_rounds(found)]


def sighting_scores(
    seen: Sighting,
    targets: AuditTargets,
    label: np.ndarray,
    shadows: Shadows | None,
    tuned: Tuned | None = None,
) -> Scores:
    """Attack -> float64 [n]; nan for targets without an answer. `tuned` caches RMIA's a."""
    number = len(targets.example)
    if seen.kind == "distances":
        shadows = None
    a = _tuned_a(shadows, label, number, {} if tuned is None else tuned)
    scores: Scores = {}
    for row, rows in enumerate(seen.asked_about(targets)):
        own = _Own(
            seen.answers[row, rows],
            label[rows],
            seen.answers[row, number:],
            label[number:],
            None if shadows is None else _of_rows(shadows, rows, number),
        )
        if seen.kind == "distances":
            of_row = {"nearest": -own.answers[:, 0].astype(np.float64)}
        else:
            of_row = (
                _of_marks(own, seen.kind)
                if seen.kind in ("labels", "counts")
                else _of_probabilities(own, a)
            )
        if seen.norms.size:
            of_row["gradient_norm"] = single_model.gradient_norm_scores(
                np.nan_to_num(seen.norms[row, rows])
            )
        if seen.translated.size:
            of_row["label_translations"] = seen.translated[row, rows].astype(np.float64)
        if seen.noisy.size:
            of_row["label_noise"] = seen.noisy[row, rows].astype(np.float64)
        for name, values in of_row.items():
            scores.setdefault(name, np.full(number, np.nan))[rows] = values
    # An attack that one client's shadows do not admit is dropped for the whole method.
    asked = np.unique(np.concatenate(seen.asked_about(targets)))
    return {name: score for name, score in scores.items() if not np.isnan(score[asked]).any()}


def _of_rows(shadows: Shadows, rows: np.ndarray, num_targets: int) -> Shadows:
    others = np.arange(num_targets, shadows.answers.shape[1])
    chosen = np.concatenate([rows, others])
    return Shadows(shadows.is_in[:, rows], shadows.answers[:, chosen])


def _of_marks(own: _Own, kind: str) -> Scores:
    """Attacks on labels and on counts of labels."""
    share = _of_label(own.answers, own.label)
    scores = {"gap": share}
    if own.shadows is not None and _has_outside(own.shadows):
        said = own.shadows.answers[:, : len(own.label)]
        wrong = (said.argmax(axis=-1) != own.label).astype(np.float64)
        scores["difficulty"] = difficulty_scores(1 - share, wrong, own.shadows.is_in)
        if kind == "labels":
            scores["reference"] = reference_scores(1 - share, wrong, own.shadows.is_in)
    return scores


def _of_probabilities(own: _Own, a: float) -> Scores:
    """Attacks on probabilities."""
    phi, others = _log_odds(own.answers, own.label), _log_odds(own.population, own.population_label)
    loss = _loss(phi)
    scores = {
        "gap": single_model.gap_scores(own.answers.argmax(axis=-1), own.label),
        "loss": single_model.loss_scores(loss),
        "population": single_model.population_scores(loss, _loss(others)),
    }
    if own.shadows is None or not _has_outside(own.shadows):
        return scores
    is_in = own.shadows.is_in
    reference_phi = _log_odds(own.shadows.answers[:, : len(own.label)], own.label)
    population_phi = _log_odds(own.shadows.answers[:, len(own.label) :], own.population_label)
    examples = rmia.Evidence(expit(phi), expit(reference_phi), is_in)
    outsiders = rmia.Evidence(expit(others), expit(population_phi))
    scores["difficulty"] = difficulty_scores(loss, _loss(reference_phi), is_in)
    scores["reference"] = reference_scores(loss, _loss(reference_phi), is_in)
    scores["lira_offline"] = lira.offline(phi, reference_phi, is_in)
    scores["rmia_offline"] = rmia.offline(examples, outsiders, a=a)
    if is_in.any(axis=0).all() and (is_in.sum(axis=0) > 1).any():
        scores["lira_online"] = lira.online(phi, reference_phi, is_in)
        scores["rmia_online"] = rmia.online(examples, outsiders)
    return scores


def _has_outside(shadows: Shadows) -> bool:
    """True if each target has a model trained without it, and at least one target has two or more."""
    number = (~shadows.is_in).sum(axis=0)
    return bool((number > 0).all() and (number > 1).any())


def _tuned_a(shadows: Shadows | None, label: np.ndarray, number: int, tuned: Tuned) -> float:
    """RMIA's a, tuned with reference models as targets; the authors' 0.3 if there are too few."""
    if shadows is None:
        return 0.3
    if id(shadows) not in tuned:
        few = slice(_TUNED_ON)
        is_in = shadows.is_in[few]
        some = is_in.any(axis=0) & ((~is_in).sum(axis=0) > 1)
        p = expit(_log_odds(shadows.answers[few], label))
        enough = len(is_in) >= 4 and all(row.any() and not row.all() for row in is_in[:, some])
        examples = rmia.Evidence(p[0, :number][some], p[:, :number][:, some], is_in[:, some])
        others = rmia.Evidence(p[0, number:], p[:, number:])
        tuned[id(shadows)] = shadows, rmia.tuned_a(examples, others) if enough else 0.3
    return tuned[id(shadows)][1]


def _over_rounds(found: list[Attacked]) -> list[Attacked]:
    groups: dict[tuple[str, str, str], list[Attacked]] = {}
    for one in found:
        if one.attack in _SUMMABLE:
            groups.setdefault((one.message, one.attack, one.shadows), []).append(one)
    return [
        each[0]._replace(round=OVER_ROUNDS, score=_mean_of_known([one.score for one in each]))
        for each in groups.values()
        if len(each) > 1
    ]


def _mean_of_known(scores: list[np.ndarray]) -> np.ndarray:
    """Mean of [n] arrays over those that are no nan at a place; nan where all are."""
    known = (~np.isnan(scores)).sum(axis=0)
    total = np.nansum(scores, axis=0)
    return np.divide(total, known, out=np.full(total.shape, np.nan), where=known > 0)


def _log_odds(probabilities: np.ndarray, label: np.ndarray) -> np.ndarray:
    """phi of probabilities [..., n, C], from the sum of the other classes, as p may have rounded to 1."""
    return log_odds_of_logits(np.log(np.maximum(probabilities, _TINY)), label)


def _loss(phi: np.ndarray) -> np.ndarray:
    return np.logaddexp(0, -phi)


def _of_label(answers: np.ndarray, label: np.ndarray) -> np.ndarray:
    return np.take_along_axis(answers, label[:, None], axis=-1)[:, 0].astype(np.float64)
