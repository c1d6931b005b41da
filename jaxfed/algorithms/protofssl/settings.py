"""Ingredients and settings of ProtoFSSL.

`PrototypeTask(num_classes=10, max_labels=federation.max_labels)` has the classes and the network, in addition
to the training specification. The other classes group settings by concern. Their fields are keywords of
`protofssl`; defaults are those of the paper's Table 5.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from jaxfed.errors import UsageError
from jaxfed.settings import Count, CountOrZero, NotNegative, Positive, Probability
from jaxfed.training.pseudo_labels.prototypes import Distance

if TYPE_CHECKING:
    from jaxfed.models import Model

HelperChoice = Literal["previous_round", "newest"]
MissingClass = Literal["leave_out", "mean"]
PrototypeNetwork = Literal["own", "mean"]
TargetSource = Literal["helpers", "xclp"]


@dataclass(frozen=True)
class PrototypeTask:
    """Classes that have prototypes, and the network whose features make them.

    Attributes:
        num_classes: C.
        max_labels: the largest number of labels of a client (`Federation.max_labels`); 0: unknown, and
            prototypes are means over all rows.
        body: makes the model without its last layer, which prototypes do not use; None: `Training.model`
            with that layer.
        max_labels_of_a_class: the largest number of labels of one class at a client; 0: unknown.

    Raises:
        UsageError: no classes.
    """

    num_classes: int
    max_labels: int = 0
    body: Callable[[], Model] | None = None
    max_labels_of_a_class: int = 0

    def __post_init__(self) -> None:
        """Reject a task without classes."""
        if self.num_classes < 1:
            raise UsageError(f"num_classes={self.num_classes}: use the number of classes")

    def check_labels(self, *, support: int, min_labels: int) -> None:
        """Check that some client has enough labels of a class for an episode, and to share a prototype.

        Raises:
            UsageError: no client has.
        """
        most = self.max_labels_of_a_class
        for key, value, allowed, why in (
            ("support", support, most - 1, "a query needs one more"),
            ("min_labels", min_labels, most, "no client would share a prototype"),
        ):
            if most and value > allowed:
                wrong = f"no client has more than {most} labels of a class; {why}"
                raise UsageError(f"at most {allowed}: {wrong}", key=key, value=value)


@dataclass(frozen=True)
class Episode:
    """Numbers of examples in an episode.

    Attributes:
        support: n_S, labeled examples of each class that prototypes are made of in a step.
        query: n_Q, labeled examples of each class that are classified by them.
        unlabeled_query: n_U, unlabeled examples in a step.
    """

    support: Count = 1
    query: Count = 2
    unlabeled_query: Count = 100


@dataclass(frozen=True)
class Unlabeled:
    """The loss's term of unlabeled examples.

    Attributes:
        unlabeled_weight: lambda.
        temperature: T.
        targets: source of the pseudo-labels: the "helpers"' prototypes, or "xclp".
        unlabeled_after: number of first rounds in which unlabeled examples do not count.
    """

    unlabeled_weight: NotNegative = 0.3
    temperature: Positive = 0.5
    targets: TargetSource = "helpers"
    unlabeled_after: CountOrZero = 0


@dataclass(frozen=True)
class Helpers:
    """The clients whose prototypes others receive, and the use of these in place of a client's own.

    Attributes:
        num_helpers: largest number H of a client's helpers.
        helper_interval: rounds between two choices of helpers.
        prototypes: prototypes that stand for a class in the loss: "local", of the episode's support, or
            "global", the mean of the helpers'.
        prototype_sums: "none": helpers' prototypes reach the clients one by one. Else, with "global" ones,
            their mean does, by sums that are "plaintext", "masked" or "masked_resilient".
    """

    num_helpers: Count = 5
    helper_interval: Count = 1
    prototypes: Literal["local", "global"] = "local"
    prototype_sums: Literal["none", "plaintext", "masked", "masked_resilient"] = "none"

    def __post_init__(self) -> None:
        """Reject sums where no mean is shared, or where it would be one client's prototypes."""
        if self.shares_mean and self.prototypes != "global":
            raise UsageError(
                f"does not go with prototypes={self.prototypes!r}",
                key="prototype_sums",
                value=self.prototype_sums,
                allowed="set prototypes='global'",
            )
        if self.shares_mean and self.num_helpers < 2:
            raise UsageError(
                f"with prototype_sums={self.prototype_sums!r} a mean is of two helpers at least",
                key="num_helpers",
                value=self.num_helpers,
                allowed="use 2 or more",
            )

    @property
    def shares_mean(self) -> bool:
        """True if clients receive the helpers' mean alone."""
        return self.prototype_sums != "none"


@dataclass(frozen=True)
class Shown:
    """The prototypes that a client shows, and noise on them.

    Attributes:
        min_labels: a client withholds prototypes of classes with fewer labels (7.1).
        noise: sigma, the deviation of the noise on every number.
        clip: largest length of the embeddings that make shown prototypes; 0 leaves them as they are.
        prototype_network: network whose embeddings a client shows the means of: its "own", or the "mean" that
            the round has come to.
        delta: delta of the noise's guarantee.
    """

    min_labels: Count = 1
    noise: NotNegative = 0.0
    clip: NotNegative = 0.0
    prototype_network: PrototypeNetwork = "own"
    delta: Probability = 1e-5


@dataclass(frozen=True)
class ReleasedCode:
    """Switches for what the authors' code does otherwise than the paper.

    Attributes:
        distance: distance d of an embedding from a prototype; "mean_squared" in the code.
        missing_class: treatment of classes without a prototype; "mean" in the code.
        helper_choice: choice of helpers; "newest" in the code.
    """

    distance: Distance = "euclidean"
    missing_class: MissingClass = "leave_out"
    helper_choice: HelperChoice = "previous_round"
