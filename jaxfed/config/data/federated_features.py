"""Features of a model that the clients train together first: XCLP's `finetuned` and `linear`.

    f = head . features  <-  FedAvg on the labels that clients have     (sections `model`, `training`)
    v_i = features(x_i),   predicted_i = argmax_c f(x_i)_c              for labeled, unlabeled and new points

(XCLP, Section 4.1 and B.1.) Training uses each client's labeled examples only; the finished model embeds all
points. Training has `preprocessing.rounds` rounds of `preprocessing.cohort_size` clients. With 0 rounds the
model of `training.initial_model` is used unchanged.
"""

from __future__ import annotations

from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from ml_collections import ConfigDict

from jaxfed.config.build.assembly import make_algorithm
from jaxfed.config.build.networks import make_model
from jaxfed.config.data.preprocessing import Report
from jaxfed.data import Partition
from jaxfed.errors import UsageError
from jaxfed.federation.algorithm import FederatedAlgorithm, has_diverged
from jaxfed.federation.clients import Federation
from jaxfed.federation.rounds import cohorts_of, play
from jaxfed.host.checkpoint import Checkpoints
from jaxfed.host.checkpoint_writer import CheckpointWriter
from jaxfed.kernels.devices import in_batches
from jaxfed.models import Model

_STREAM = 2**32 - 1  # key stream; the experiment's own rounds count from 0
BATCH = 256  # examples at a time in inference


@dataclass(frozen=True)
class FeatureTraining:
    """A model and the FedAvg that trains it, made for the clients of one repeat; nothing is computed yet.

    Attributes:
        config: of this training, derived from the experiment's.
        federation: `x` are examples as the model takes them.
        seed: of the repeat.
        model: the model.
        algorithm: FedAvg on the clients' labels (`labeled_part`).
    """

    config: ConfigDict
    federation: Federation
    seed: int
    model: Model
    algorithm: FederatedAlgorithm

    def with_features(self, checkpoints: Checkpoints | None, report: Report) -> Federation:
        """Return the same clients with the trained model's features as examples, and its predictions.

        Arguments as for `trained`.

        Returns:
            `x` float32 [n, D], `predicted` int32 [n], all else unchanged.

        Raises:
            UsageError: training diverges.
        """
        state, model = self.trained(checkpoints, report), self.model

        @jax.jit
        def infer(state: nnx.State, batch: jax.Array) -> tuple[jax.Array, jax.Array]:
            features = model.features(state, batch)
            return features, jnp.argmax(model.head(state, features), axis=-1).astype(jnp.int32)

        features, predicted = in_batches(partial(infer, state), self.federation.x, BATCH)
        if not np.isfinite(features).all():
            rounds = self.config.preprocessing.rounds
            raise self._divergence(f"after {rounds} rounds the model's features are not finite")
        return replace(self.federation, x=features, predicted=predicted)

    def trained(
        self, checkpoints: Checkpoints | None, report: Report = lambda done, total: None
    ) -> nnx.State:
        """Return the model's state after all rounds.

        Args:
            checkpoints: training is saved there according to `config.checkpoint_every` and at its end, and
                resumes from there.
            report: called after every round.
        """
        config, federation = self.config, labeled_part(self.federation)
        rounds, every = config.preprocessing.rounds, config.checkpoint_every
        key = jax.random.fold_in(jax.random.key(self.seed), _STREAM)
        state = self.algorithm.init(jax.random.fold_in(key, 0), federation)
        saved = checkpoints.to_resume() if checkpoints else None
        done = saved.progress["round"] if saved else 0
        if saved:
            state = saved.state(template=state)
        writer = CheckpointWriter(checkpoints, every) if checkpoints else nullcontext()
        cohort_of = cohorts_of(self.algorithm, federation, config, self.seed, rounds)
        left = range(done + 1, rounds + 1)
        with (
            closing(play(self.algorithm, state, left, cohort_of=cohort_of, key=key)) as played,
            writer as saves,
        ):
            for number, _, state, metrics, *_ in played:
                if has_diverged(metrics):
                    raise self._divergence(f"the loss of round {number} of {rounds} is not finite")
                is_last = number == rounds
                if saves and (is_last or saves.are_due(number, is_last=is_last)):
                    saves.save(number, state, {"round": number}, at_once=is_last)
                report(number, rounds)
        return state.model

    def _divergence(self, found: str) -> UsageError:
        rate = self.config.training.learning_rate
        return UsageError(
            f"config.preprocessing.kind='federated_features': {found}; training diverged: lower "
            f"config.training.learning_rate ({rate:g})"
        )


def feature_training(config: ConfigDict, federation: Federation, repeat: int) -> FeatureTraining:
    """Make the model and its training; the seed is `config.seed + repeat`.

    Raises:
        UsageError: network, weights or options do not fit the examples.
    """
    own, training = config.copy_and_resolve_references(), labeled_part(federation)
    own.rounds = max(1, config.preprocessing.rounds)
    own.cohort_size, own.sampling = config.preprocessing.cohort_size, "uniform"
    own.training.labeled_only_rounds = 0
    with own.unlocked():
        if "fedavg" in own:  # own settings of the method of that name
            del own["fedavg"]
    algorithm, model = make_algorithm(own, "fedavg", training, repeat), make_model(config, training)
    return FeatureTraining(own, federation, config.seed + repeat, model, algorithm)


def labeled_part(federation: Federation) -> Federation:
    """Return the same clients with their labeled examples only."""
    labeled = federation.partition.labeled
    nothing = tuple(points[:0] for points in labeled)
    return federation.with_partition(Partition(labeled, nothing, nothing))
