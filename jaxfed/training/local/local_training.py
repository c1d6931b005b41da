"""Local training of a client: the part of `Training` that local steps need.

LocalTraining(optimizer=optax.adam, batches=Batches("joint", size=10, epochs=5))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxfed.errors import UsageError
from jaxfed.settings import Described, advice, check
from jaxfed.training.local.augmentation import check_levels
from jaxfed.training.local.batches import Batches
from jaxfed.training.local.local_update import Optimizer
from jaxfed.training.local.losses import Augment, Pointwise, softmax_cross_entropy, views

BatchStatistics = Literal["averaged", "static"]
ClientOptimizer = Literal["fresh", "kept"]

LEARNING_RATE = 0.1
_CONSTANT = optax.constant_schedule(LEARNING_RATE)
_BATCHES = Batches("joint", size=32, epochs=1)
_BATCHES_OF_BOTH: Any = None  # computed from `batches`
_Rate = Annotated[
    Callable[[jax.Array], jax.Array],
    Described("a schedule such as optax.constant_schedule(0.1)"),
]


@dataclass(frozen=True)
class LocalTraining:
    """Local steps of one client in one round: optimizer, batches, loss of an example, augmentation.

    Attributes:
        optimizer: learning rate -> the clients' optimizer.
        client_optimizer: treatment of its state (momentum, second moments) after a client's round.

            - "fresh": it is dropped; an optimizer starts anew in every round (FedAvg, and most papers).
            - "kept": each client keeps its own for its next round, across stages 1 and 2; the learning
              rate is still the round's. M clients keep M optimizer states: one more number per parameter
              for RMSprop, two for Adam, none for plain SGD. (ProtoFSSL's code has one optimizer for all
              clients, which train one after another; here a round's clients train side by side.)
        learning_rate: rounds done -> the round's rate, jit-traceable (`jnp.where` in place of `if`). Counted
            anew after `Training.labeled_only_rounds`.
        batches: of labeled and pseudo-labeled examples.
        labeled_batches: for rounds on given labels alone; by default `batches`.
        pointwise: l(logits, label), from which `Training.loss` and methods' own losses are built.
        augment: random changes of a batch that keep its classes; `Training.loss` includes them.
        strong_augment: stronger ones, for methods that compare the two.
        batch_statistics: treatment of BatchNorm's running statistics. While training, BatchNorm
            always uses its batch; running statistics matter when a model is evaluated or embeds. Where the
            batch size does not divide the client's examples, some of them fill the last batch of an epoch a
            second time. They have no weight in the loss, but statistics count them.

            - "averaged": through the server with the parameters, in the same mean (XCLP's code).
            - "static": none are kept; after each round the cohort's clients measure the new model's
              on their data, and the server takes the mean (HeteroFL, SemiFL).
    """

    optimizer: Annotated[Optimizer, Described("a function such as optax.adam")] = optax.sgd
    client_optimizer: ClientOptimizer = "fresh"
    learning_rate: _Rate = _CONSTANT
    batches: Batches = _BATCHES
    labeled_batches: Batches = _BATCHES_OF_BOTH
    pointwise: Annotated[
        Pointwise, Described("a function of logits and labels, such as softmax_cross_entropy")
    ] = softmax_cross_entropy
    augment: Augment | None = None
    strong_augment: Augment | None = None
    batch_statistics: BatchStatistics = "averaged"

    def __post_init__(self) -> None:
        """Check the types, and use `batches` for rounds on given labels too if they have none of their own.

        Raises:
            UsageError: a name or a number in place of a function, another name than those above, a rate that
                is no number or that JAX cannot trace, or no `Batches`.
        """
        check(self)
        try:
            jax.eval_shape(self.rate_in, jax.ShapeDtypeStruct((), jnp.int32))
        except jax.errors.ConcretizationTypeError as error:
            raise UsageError(
                "its rounds are a number of JAX, which `if` and `float` cannot read",
                key="learning_rate",
                owner="LocalTraining",
                value=self.learning_rate,
                allowed="use a schedule of optax, such as optax.piecewise_constant_schedule, or jnp.where",
            ) from error
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"gives no rate for a round: {' '.join(str(error).split())[:300]}",
                key="learning_rate",
                owner="LocalTraining",
                value=self.learning_rate,
                allowed=advice(_Rate),
            ) from error
        if self.labeled_batches is None:
            object.__setattr__(self, "labeled_batches", self.batches)

    def rate_in(self, stage_round: jax.Array) -> jax.Array:
        """Return the learning rate after so many rounds of the stage, a float32 scalar; jit-traceable."""
        return jnp.float32(self.learning_rate(stage_round.astype(jnp.float32)))

    def rate_of(self, stage_round: int) -> np.float32:
        """Return the same on the host, as an argument of programs that do not have it as a constant."""
        return np.float32(self._rate(stage_round))

    @cached_property
    def _rate(self) -> Callable[[int], jax.Array]:
        return jax.jit(self.rate_in)

    def check_examples(self, x: np.ndarray) -> None:
        """Check that both augmentations can change these examples, [n, ...].

        Raises:
            UsageError: images of other levels than theirs.
        """
        for augment in (self.augment, self.strong_augment):
            check_levels(augment, x)

    def require_two_views(self, method: str) -> None:
        """Check that there is a strong augmentation, which this method requires.

        Raises:
            UsageError: there is none.
        """
        if self.strong_augment is None:
            raise UsageError(
                f"{method!r} compares two views of an example",
                key="strong_augment",
                owner="LocalTraining",
                value=None,
                allowed="give a strong augmentation",
            )

    def two_views(self, keys: Sequence[jax.Array] | jax.Array, x: jax.Array) -> jax.Array:
        """Return the weak view of a batch and then the strong one, [2 B, ...]; each has a key."""
        return views((self.augment, self.strong_augment), keys, x)

    def require_fresh_optimizers(self, why: str) -> None:
        """Check that clients' optimizers start anew in each round; `why` opens the error.

        Raises:
            UsageError: clients keep them.
        """
        if self.client_optimizer == "kept":
            raise UsageError(
                why,
                key="client_optimizer",
                owner="LocalTraining",
                value="kept",
                allowed="use 'fresh'",
            )
