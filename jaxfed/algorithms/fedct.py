r"""FedCT: federated co-training by hard labels of public examples (Algorithm 1).

A. Abourayya, J. Kleesiek, K. Rao, E. Ayday, B. Rao, G. I. Webb, M. Kamp. "Little is Enough: Boosting Privacy
by Sharing Only Hard Labels in Federated Semi-Supervised Learning". AAAI 2025 (arXiv 2310.05696).

Clients i have labeled examples D^i and learners A^i of any kind; all have unlabeled examples U. At client i,

    line 3    h^i <- A^i(D^i u P, h^i)          in each of b local steps; P is empty at first
    line 5    L^i <- h^i(U)
    line 6    sends L^i, receives L
    line 7    P <- (U, L)

and at the server, line 11, L <- consensus(L^1, ..., L^m). A round here is b of the paper's T, `steps`, ending
with a communication: T / b rounds in all. An estimator without steps is fitted anew once a round.

Only the cohort takes part; other clients keep their models and do not vote. In the paper all clients take
part in every round. An example on which the consensus abstains (`qualified_majority`) is not in P until
the clients agree. In a round without a consensus (no votes, or a masked sum of fewer than two clients) P
stays. Classification only: labels of all federations are classes, and no config runs regression. Its
consensus (the paper's Section 6) is a library function; the docstring of
`jaxfed.training.consensus.consensus.mean` shows rounds of regressors.

DP-FedCT (Section 4) is `release`: clients add noise to their labels
(`jaxfed.training.consensus.label_noise`). Each communication costs eps if one private example changes at most
r labels (s = 2 r of the paper's bits). `sensitivity` selects the source of r:

    "rows"         r as given, 0 for all of U; this bound with 0 always holds
    "stability"    Proposition 2 with a given rate; its proof does not hold
                   (`jaxfed.privacy.label_sensitivity`)
    "estimated"    the paper's estimate from neighbors sampled in the first round
                   (`jaxfed.learners.label_changes`); it bounds nothing

Each has a metric of its own (`jaxfed.privacy.label_promise`): `epsilon`, `epsilon_if_stable`,
`epsilon_estimated`. The metric composes all releases of the client that took part most often; the paper
states the eps of one. `condition` "paper" is the paper's condition on Theta, larger
than necessary by sqrt(C).

The authors' code differs from the paper. It gives ties to the smallest class (so do we). It reads released
bits by their first set class (`decode` "votes"). It draws bits by probabilities that depend on the private
labels, which gives no epsilon (`jaxfed.privacy.xor_mechanism`). Up to 2024 its networks never learned from L
with b > 1.

Leaves a client: |U| labels of ceil(log2 C) bits a round, or bits or answers in their place; with `sums` under
masks the server sees their histogram alone. Comes back: |U| labels, and weights where they are not 0 or 1.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from jaxfed.errors import UsageError
from jaxfed.federation.algorithm import FederatedAlgorithm, Metrics
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.communication import Communication, label_bytes
from jaxfed.federation.departures import check_departures
from jaxfed.federation.exposure import Instruction, View
from jaxfed.learners.answers import Question
from jaxfed.learners.exposure import labels_shown, probabilities_shown
from jaxfed.learners.judgement import judged_by_clients
from jaxfed.learners.label_changes import estimated_rows
from jaxfed.learners.learner import Learner, Taught
from jaxfed.learners.turn import (
    Turn,
    asked,
    check_clients,
    count,
    first_turns,
    speaking,
    take_turn,
    with_turns,
)
from jaxfed.privacy.label_promise import Sensitivity, label_promise
from jaxfed.privacy.xor_mechanism import Condition
from jaxfed.rules import POSITIVE, SHARE, Rule, at_least, between, keywords, one_of
from jaxfed.training.consensus.attendance import Attendance, departures_of
from jaxfed.training.consensus.consensus import ABSTAINED, Agreed, Ties, Weights, consensus_of
from jaxfed.training.consensus.label_noise import (
    Decode,
    LabelNoise,
    Mechanism,
    agreed_under_noise,
    released_marks,
)
from jaxfed.training.consensus.opened_tally import Sums, agreed, fewest_clients

RELEASES = ("none", *get_args(Mechanism))
_WEIGHT = 4
_LEAVING = 0x6C656176  # random stream of the clients that leave
_NEIGHBORS = 0x6E656967  # random stream of neighbors, separate from local steps


class FedCTState(NamedTuple):
    """State before a round.

    Fields:
        learner: the models h^i of all clients.
        label: int32 [U], L; -1 where clients abstained, or have not voted yet.
        weight: float32 [U], how much an example of P counts.
        turns: int32 [M], communications that each client took part in.
        rows: int32, labels that noise hides; 0 without noise, and before an estimate.
        round: int32, rounds done.
    """

    learner: Any
    label: np.ndarray
    weight: np.ndarray
    turns: np.ndarray
    rows: np.ndarray
    round: np.ndarray


@keywords(
    steps=at_least(1),
    threshold=SHARE,
    ties=one_of(get_args(Ties)),
    weights=one_of(get_args(Weights)),
    sums=one_of(get_args(Sums)),
    release=one_of(RELEASES),
    epsilon=POSITIVE,
    sensitivity=one_of(get_args(Sensitivity)),
    rows=at_least(0, ", 0 is all public examples"),
    stability_rate=SHARE,
    stability_delta=Rule(float, "numbers above 0 and up to 0.5", lambda value: 0 < value <= 0.5),
    neighbors=at_least(1),
    decode=one_of(get_args(Decode)),
    condition=one_of(get_args(Condition)),
    delta=between(0, 1, closed=False),
)
def fedct(
    *,
    learner: Learner,
    public: np.ndarray,
    num_classes: int,
    steps: int = 50,
    consensus: str = "majority",
    threshold: float = 0.0,
    ties: Ties = "smallest",
    weights: Weights = "one",
    sums: Sums = "plaintext",
    presence: Sequence[str] = (),
    release: str = "none",
    epsilon: float = 1.0,
    sensitivity: Sensitivity = "rows",
    rows: int = 0,
    stability_rate: float = 0.0,
    stability_delta: float = 1e-5,
    neighbors: int = 100,
    decode: Decode = "unbiased",
    condition: Condition = "exact",
    delta: float = 1e-5,
) -> FederatedAlgorithm:
    """FedCT, and DP-FedCT.

    Args:
        learner: A, of all clients.
        public: U, [U, ...].
        num_classes: C.
        steps: b, local steps of a round.
        consensus: a name in `jaxfed.training.consensus.consensus.CONSENSUS`; of labels or, for
        `confidence_weighted`
            and `soft_mean`, of probabilities, which are then what clients share.
        threshold: of the consensus; 0 is its own.
        ties: of the consensus.
        weights: of labels in P: one, or the share of clients that say it.
        sums: how the server adds what clients send.
        presence: which clients leave, and at which stage of a sum under masks: "CLIENT@STAGE" or
            "SHARE%@STAGE" (`jaxfed.training.consensus.attendance`).
        release: "none", or noise on labels; without it what only noise has stays at its default.
        epsilon: of one communication of a client, under noise.
        sensitivity: where it is from how many labels one private example changes, r.
        rows: r, with "rows", |U| at most; 0 is |U|.
        stability_rate: of the learner, with "stability".
        stability_delta: how often Proposition 2 may fail.
        neighbors: that are tried of each client, with "estimated": as many times its training.
        decode: what the server makes of labels with noise.
        condition: of the XOR mechanism.
        delta: at which `epsilon_approximate` composes.

    A round's metrics: `consensus_change`, share of U whose label changed; `agreement`, mean share of the
    consensus label among the votes as the server sees them; `abstained`, share of U without a label;
    `voters`, number of clients in the consensus, and with `presence` the number that `left`;
    `failed_clients`, `clients` that were fitted, and the learners' own metrics; under noise `epsilon`,
    `epsilon_if_stable` or `epsilon_estimated`, the last two with `sensitivity_rows`, r.

    Raises:
        UsageError: a value that is not allowed, or values that do not go together; in `init`, no public
            examples, new points at clients, labels at the server, clients that leave and are not there.
    """
    agree = consensus_of(consensus, num_classes, threshold=threshold, ties=ties, weights=weights)
    question: Question = "predict" if agree.answers == "labels" else "predict_proba"
    if getattr(learner, question) is None:
        raise UsageError(
            f"consensus={consensus!r}: needs probabilities, and this learner gives labels alone; allowed are "
            "those of labels, such as 'majority'"
        )
    if sums != "plaintext" and agree.tally is None:
        raise UsageError(
            f"sums={sums!r}: consensus={consensus!r} needs every client's labels; allowed is 'plaintext'"
        )
    promise = label_promise(
        sensitivity, rows=rows, stability_rate=stability_rate, stability_delta=stability_delta
    )
    noise = None
    if release != "none":
        if agree.answers != "labels":
            raise UsageError(
                f"release={release!r}: noise is on labels; consensus={consensus!r} has clients share "
                "probabilities, with which 'none' is allowed"
            )
        if decode == "unbiased" and agree.from_tally is None:
            raise UsageError(
                f"decode='unbiased': consensus={consensus!r} needs every client's labels; allowed is 'votes'"
            )
        noise = LabelNoise(release, epsilon, 0, decode, condition)  # type: ignore[arg-type]
    else:
        _check_is_unsaid(
            epsilon=epsilon,
            sensitivity=sensitivity,
            rows=rows,
            decode=decode,
            condition=condition,
        )
    departures = departures_of(presence, sums, "fedct.presence")

    def init(key: jax.Array, federation: Federation) -> FedCTState:
        check_clients(federation, public)
        if noise and rows > len(public):
            logging.warning(
                "fedct.rows=%d: of %d public labels no more can change", rows, len(public)
            )
        check_departures(departures, federation.num_clients, "fedct.presence")
        return FedCTState(
            learner=learner.init(key, federation),
            label=np.full(len(public), ABSTAINED, np.int32),
            weight=np.zeros(len(public), np.float32),
            turns=first_turns(federation),
            rows=count(promise.known_rows(len(public)) if noise else 0),
            round=count(0),
        )

    def round(state: FedCTState, cohort: Cohort, key: jax.Array) -> tuple[FedCTState, Metrics]:
        fit_key, noise_key, tie_key = jax.random.split(key, 3)
        communication = Communication()

        # Locally at clients: lines 3, 5 and 6
        taught = Taught(public, state.label, state.weight)

        def said_by(some: Cohort) -> tuple[Turn, np.ndarray]:
            turn = take_turn(learner, state.learner, some, taught, fit_key, steps)
            return asked(turn, learner, question, public, num_classes, fit_key)

        turn, local = said_by(cohort)
        voters = speaking(turn.client_id, local)
        rows = int(state.rows)
        if noise is not None and not rows:
            rows = estimated_rows(
                lambda one: said_by(one)[1][0],
                cohort,
                voters,
                public,
                num_classes,
                jax.random.fold_in(key, _NEIGHBORS),
                num_neighbors=neighbors,
            )

        # At the server: lines 10 and 11
        attendance = None
        if departures:
            attendance = Attendance(voters, departures, jax.random.fold_in(key, _LEAVING))
        said = Agreed(jnp.asarray(state.label), jnp.asarray(state.weight), jnp.zeros((0, 1)))
        num_told = int(np.sum(voters >= 0))
        num_summed, least = num_told, fewest_clients(sums)
        if num_told:
            summed = settled(local, voters, communication, rows, noise_key, tie_key, attendance)
            if attendance is not None:
                voters = np.where(np.isin(voters, attendance.summed), voters, -1)
            num_summed = int(np.sum(voters >= 0))
            said = summed if num_summed >= least else said  # else the consensus stays
        label, weight, soft = map(np.asarray, said)

        # Line 12, and line 7 at clients
        abstained = label < 0
        num_bytes = label_bytes(len(label), num_classes + int(abstained.any()))
        if not np.isin(weight, (0, 1)).all():
            num_bytes += _WEIGHT * len(weight)
        if num_summed >= least:
            communication.down("consensus", num_told * num_bytes)
        elif num_told:
            logging.warning(
                "fedct: no consensus in round %d: %d of %d clients that answer stay in the sum, which is of "
                "%d or more",
                *(int(state.round) + 1, num_summed, num_told, least),
            )
        after = FedCTState(
            turn.state,
            label,
            weight,
            with_turns(state.turns, voters),
            count(rows),
            count(int(state.round) + 1),
        )
        metrics: Metrics = {
            **turn.metrics,
            "voters": num_summed,
            "consensus_change": float(np.mean(label != state.label)),
            "abstained": float(np.mean(abstained)),
        }
        if attendance is not None:
            metrics["left"] = len(attendance.left)
        is_told = soft.any(axis=1)
        if is_told.any():
            metrics["agreement"] = float(np.mean(soft[is_told].max(axis=1)))
        if noise is not None:
            metrics |= promise.told(epsilon, int(after.turns.max()), delta, rows)
        return after, {**metrics, "communication": communication.metrics()}

    def settled(
        local: np.ndarray,
        voters: np.ndarray,
        communication: Communication,
        rows: int,
        noise_key: jax.Array,
        tie_key: jax.Array,
        attendance: Attendance | None,
    ) -> Agreed:
        if noise is None:
            return agreed(
                agree,
                local,
                voters,
                communication,
                num_classes=num_classes,
                sums=sums,
                key=tie_key,
                attendance=attendance,
            )
        return agreed_under_noise(
            noise._replace(rows=rows),
            agree,
            local,
            voters,
            communication,
            num_classes=num_classes,
            sums=sums,
            noise_key=noise_key,
            key=tie_key,
            attendance=attendance,
        )

    def views(before: Any, after: Any, cohort: Cohort, key: jax.Array) -> list[View]:
        del before
        summed = sums != "plaintext"
        shown = after.learner, cohort.client_id, num_classes
        if agree.answers == "probabilities":
            return [probabilities_shown(learner, *shown, summed=summed)]
        noise_key = jax.random.split(key, 3)[1]

        def noisy(labels: np.ndarray, client: int) -> np.ndarray:
            own_key = jax.random.fold_in(noise_key, client)
            assert noise is not None
            own_noise = noise._replace(rows=int(after.rows))
            return released_marks(own_noise, labels, len(public), num_classes, own_key)

        released = None if noise is None else noisy
        return [labels_shown(learner, *shown, summed=summed, released=released)]

    def instructions(before: Any, after: Any, cohort: Cohort, key: jax.Array) -> list[Instruction]:
        del after, cohort, key
        return [Instruction(steps, True, before.label, before.weight)]

    judged = judged_by_clients(learner, num_classes, has_consensus=True)
    return FederatedAlgorithm(
        init, round, views=views, instructions=instructions, **judged._asdict()
    )


def _check_is_unsaid(**settings: Any) -> None:
    """Check that no noise setting is given without noise, as it would suggest an eps that does not hold.

    Raises:
        UsageError: one that differs from the default.
    """
    known = inspect.signature(fedct).parameters
    for key, value in settings.items():
        if value != known[key].default:
            raise UsageError(
                f"{key}={value!r}: is of noise, and release='none' adds none; allowed with "
                f"release={' or '.join(map(repr, RELEASES[1:]))}"
            )
