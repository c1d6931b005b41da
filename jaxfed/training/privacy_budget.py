"""Noise while training, fitted to a budget before and accounted for after every round."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, wraps
from types import SimpleNamespace
from typing import Annotated

import jax
import numpy as np
from flax import nnx

from jaxfed.errors import UsageError
from jaxfed.federation.algorithm import FederatedAlgorithm, Metrics
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.sampling import Participation
from jaxfed.privacy.sampled_gaussian import Subsampling, epsilon_of, noise_multiplier_of
from jaxfed.settings import Allowed, advice, check_value
from jaxfed.training.server.client_rows import gather, leaves, took_part
from jaxfed.training.server.server_state import ServerState
from jaxfed.training.specification import Training

_OfTheRun = Annotated[
    Participation,
    Allowed(
        lambda given: isinstance(given, Participation),
        "participation(Sampling(...), federation, seed, rounds) of the run itself",
    ),
]


def check_private(training: Training, method: str) -> None:
    """Check that noise covers all that a client sends, and that all clients of a cohort train.

    Raises:
        UsageError: the model has running statistics, which would leave a client without noise, or clients
            of a cohort do not train, although the guarantee counts them.
    """
    if training.training_cohort_size:
        raise UsageError(
            "the privacy of this method counts the clients of a cohort, of which all train",
            key="training_cohort_size",
            owner="Training",
            value=training.training_cohort_size,
            allowed="use 0, and cohorts of as many clients as are to train",
        )
    model = jax.eval_shape(training.model.init, jax.random.key(0))
    if jax.tree.leaves(nnx.split_state(model, nnx.Param, ...)[1]):
        raise UsageError(
            f"{method}: this network has BatchNorm, whose running statistics no noise covers; use a network "
            "without, such as config.model.norm='group'"
        )


def check_budget(given: SimpleNamespace) -> None:
    """Check that a method's keywords give noise directly or by an epsilon, not both.

    Raises:
        UsageError: both are given, or `participation` is of another type.
    """
    check_value("participation", vars(given).get("participation"), _OfTheRun | None)
    if given.noise_multiplier and given.target_epsilon:
        raise UsageError(
            f"target_epsilon={given.target_epsilon} chooses it",
            key="noise_multiplier",
            value=given.noise_multiplier,
            allowed="leave one of them out",
        )


@dataclass(frozen=True)
class Budget:
    """Noise of a private method, what it spends, and the cohorts that its guarantee counts on.

    Attributes:
        clip: largest norm that noise covers.
        noise_multiplier: z. None: 1, or the value that `target_epsilon` needs. 0: no noise and no epsilon.
        target_epsilon: at the end of a run; 0: z is given.
        delta: of the guarantee.
        draw: the sampling behind one release.
        releases: releases of a client in a round.
        participation: of clients in a run; None: unknown.
        sampling_rate: the share that each release, or each round, draws.
    """

    clip: float
    noise_multiplier: float | None
    target_epsilon: float
    delta: float
    draw: Subsampling
    participation: Participation | None
    releases: int = 1
    sampling_rate: float = 1.0

    @cached_property
    def most_rounds(self) -> int:
        """Largest number of rounds that a client may take part in under `target_epsilon`.

        Raises:
            UsageError: `participation` is not given.
        """
        if self.participation is None:
            raise UsageError(
                "it is not known how often a client takes part",
                key="target_epsilon",
                value=self.target_epsilon,
                allowed="give participation=...",
            )
        return self.participation.most_rounds()

    @cached_property
    def noise(self) -> float:
        """The given z, or the least one that keeps a run within `target_epsilon`."""
        if not self.target_epsilon:
            return 1.0 if self.noise_multiplier is None else self.noise_multiplier
        releases = self.most_rounds * self.releases
        return noise_multiplier_of(self.target_epsilon, self.delta, releases, self.draw)

    def accounted(self, plain: FederatedAlgorithm) -> FederatedAlgorithm:
        """Return the method with epsilon and its parameters among each round's metrics.

        `ServerState.clients` of `plain` counts each client's rounds. A round raises a UsageError if its
        cohort is not one of `participation`.
        """

        @wraps(plain.round)
        def round(
            state: ServerState, cohort: Cohort, key: jax.Array
        ) -> tuple[ServerState, Metrics]:
            assumed = self.participation
            if assumed is not None and assumed.is_drawn:
                size = int(np.sum(np.asarray(cohort.client_id) >= 0))
                number = len(leaves(state.clients)[0])
                self.check(assumed._replace(num_clients=number, cohort_size=size))
            after, metrics = plain.round(state, cohort, key)
            rounds = np.asarray(gather(after.clients, took_part(after.clients)))
            most = int(rounds.max(initial=0))
            if self.target_epsilon:
                self._check_rounds(most)
            if self.noise:
                metrics = {
                    **metrics,
                    "epsilon": epsilon_of(self.delta, self.noise, self.releases * most, self.draw),
                    "noise_multiplier": self.noise,
                    "delta": self.delta,
                    "clip": self.clip,
                    "sampling_rate": self.sampling_rate,
                }
            return after, metrics

        return plain._replace(round=round, check_participation=self.check)

    def check(self, played: Participation) -> None:
        """Check that a run has the cohorts that the guarantee assumes.

        Raises:
            UsageError: it has others, or more rounds than the noise was computed for.
        """
        assumed = self.participation
        if assumed is None:
            return
        names = (
            "num_clients",
            "cohort_size",
            *("sampling",) * (assumed.cohort_size < assumed.num_clients),
        )
        for name in names:
            wanted, actual = getattr(assumed, name), getattr(played, name)
            if wanted != actual:
                raise _mismatch(f"it has {name}={wanted!r}, but the run has {name}={actual!r}")
        if self.target_epsilon:
            self._check_rounds(played.most_rounds())

    def _check_rounds(self, most: int) -> None:
        if most <= self.most_rounds:
            return
        raise _mismatch(
            f"target_epsilon={self.target_epsilon} allows {self.most_rounds} rounds of a client, but one "
            f"takes part in {most}"
        )


def _mismatch(wrong: str) -> UsageError:
    return UsageError(
        wrong,
        key="participation",
        allowed=advice(_OfTheRun),
    )
