"""Noise while training, fitted to a budget before and accounted for after every round."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Annotated, Any

import jax
import numpy as np
from flax import nnx

from jaxfed.errors import UsageError
from jaxfed.federation.algorithm import FederatedAlgorithm, Metrics
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.method import with_attributes
from jaxfed.federation.rounds import Participation
from jaxfed.privacy.composition import MOST_NOISE, Subsampling, epsilon_of, noise_multiplier_of
from jaxfed.settings import (
    Allowed,
    Ge,
    Le,
    NotNegative,
    Positive,
    Probability,
    advice,
    check,
    check_value,
)
from jaxfed.training.server_state import ServerState, gather, took_part
from jaxfed.training.specification import Training

_OfTheRun = Annotated[
    Participation,
    Allowed(
        lambda value: isinstance(value, Participation),
        "participation(Sampling(...), federation, seed, rounds) of the run itself",
    ),
]


def check_private(training: Training, participation: Participation | None, method: str) -> None:
    """Check that noise covers all that a client sends."""
    check_value("participation", participation, _OfTheRun | None)
    model = jax.eval_shape(training.model.init, jax.random.key(0))
    if jax.tree.leaves(nnx.split_state(model, nnx.Param, ...)[1]):
        raise UsageError(
            f"{method}: this network has BatchNorm, whose running statistics no noise covers; use a network "
            "without, such as config.model.norm='group'"
        )


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """Settings of a private method: its clip, and its noise, given directly or by an epsilon.

    Attributes:
        clip: largest norm, of a client's change or an example's gradient; longer ones are scaled down to it.
        noise_multiplier: z, the noise's standard deviation in units of `clip`. None: 1, or the value that
            `target_epsilon` needs. 0: no noise and no epsilon.
        target_epsilon: in place of z, `epsilon` after the last round, of the client that takes part most
            often; 0: z is given.
        delta: delta of the guarantee; every epsilon is at it.
    """

    clip: Positive = 1.0
    noise_multiplier: Annotated[float, Ge(0), Le(MOST_NOISE)] | None = None
    target_epsilon: NotNegative = 0.0
    delta: Probability = 1e-5

    def __post_init__(self) -> None:
        check(self)
        if self.noise_multiplier and self.target_epsilon:
            raise UsageError(
                f"target_epsilon={self.target_epsilon} chooses it",
                key="noise_multiplier",
                value=self.noise_multiplier,
                allowed="leave one of them out",
            )


PRIVATE: dict[str, Any] = {  # arguments of `@method` that private methods share
    "takes": ("training", "participation"),
    "fields": {"guarantee": Guarantee},
    "pseudo_label": "none",
    "private": True,
    "unread": ("weighting",),
}


@dataclass(frozen=True)
class Budget:
    """Noise of a private method, what it spends, and the cohorts that its guarantee counts on.

    Attributes:
        guarantee: clip, noise, epsilon and delta.
        draw: the sampling behind one release.
        participation: of clients in a run; None: unknown.
        releases: releases of a client in a round.
        sampling_rate: the share that each release, or each round, draws.
    """

    guarantee: Guarantee
    draw: Subsampling
    participation: Participation | None
    releases: int = 1
    sampling_rate: float = 1.0

    @cached_property
    def most_rounds(self) -> int:
        """Largest number of rounds that a client may take part in under `target_epsilon`."""
        if self.participation is None:
            raise UsageError(
                "it is not known how often a client takes part",
                key="target_epsilon",
                value=self.guarantee.target_epsilon,
                allowed="give participation=...",
            )
        return self.participation.most_rounds()

    @cached_property
    def noise(self) -> float:
        """The given z, or the least one that keeps a run within `target_epsilon`."""
        wanted = self.guarantee
        if not wanted.target_epsilon:
            return 1.0 if wanted.noise_multiplier is None else wanted.noise_multiplier
        releases = self.most_rounds * self.releases
        return noise_multiplier_of(wanted.target_epsilon, wanted.delta, releases, self.draw)

    def accounted(self, plain: FederatedAlgorithm) -> FederatedAlgorithm:
        """Return the method with epsilon and its parameters among each round's metrics.

        `ServerState.clients` of `plain` counts each client's rounds. A round raises a UsageError if its
        cohort is not that of `participation` where clients are drawn, or if `target_epsilon` is spent. It
        depends on nothing but its arguments, so a function that replaces the method's `round`, and calls
        it, loses no check. `check_participation` only finds the fault before the first round.
        """

        @wraps(plain.round)
        def round(
            state: ServerState, cohort: Cohort, key: jax.Array
        ) -> tuple[ServerState, Metrics]:
            assumed = self.participation
            if assumed is not None and assumed.is_drawn:
                number, clients = int(state.round) + 1, np.asarray(cohort.client_id)
                if sorted(clients[clients >= 0].tolist()) != assumed.clients_of(number):
                    raise _mismatch(f"round {number} is of other clients than it draws")
            after, metrics = plain.round(state, cohort, key)
            rounds = np.asarray(gather(after.clients, took_part(after.clients)))
            most = int(rounds.max(initial=0))
            wanted = self.guarantee
            if wanted.target_epsilon:
                self._check_rounds(most)
            if self.noise:
                spent = epsilon_of(wanted.delta, self.noise, self.releases * most, self.draw)
                metrics = {
                    **metrics,
                    "epsilon": spent,
                    "noise_multiplier": self.noise,
                    "delta": wanted.delta,
                    "clip": wanted.clip,
                    "sampling_rate": self.sampling_rate,
                }
            return after, metrics

        return plain._replace(round=with_attributes(round, check_participation=self.check))

    def check(self, played: Participation) -> None:
        """Check that a run has the cohorts that the guarantee assumes, and not more rounds."""
        assumed = self.participation
        if assumed is None:
            return
        is_part = assumed.cohort_size < assumed.num_clients
        for name in ("num_clients", "cohort_size", *("sampling",) * is_part):
            wanted, actual = getattr(assumed, name), getattr(played, name)
            if wanted != actual:
                raise _mismatch(f"it has {name}={wanted!r}, but the run has {name}={actual!r}")
        if self.guarantee.target_epsilon:
            self._check_rounds(played.most_rounds())

    def _check_rounds(self, most: int) -> None:
        if most <= self.most_rounds:
            return
        raise _mismatch(
            f"target_epsilon={self.guarantee.target_epsilon} allows {self.most_rounds} rounds of a "
            f"client, but one takes part in {most}"
        )


def _mismatch(wrong: str) -> UsageError:
    return UsageError(wrong, key="participation", allowed=advice(_OfTheRun))
