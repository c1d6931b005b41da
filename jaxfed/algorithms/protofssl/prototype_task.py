"""Classes and network of ProtoFSSL, in addition to the training specification.

PrototypeTask(num_classes=10, max_labels=federation.max_labels)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jaxfed.errors import UsageError

if TYPE_CHECKING:
    from jaxfed.models import Model


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
        for key, given, allowed, why in (
            ("support", support, most - 1, "a query needs one more"),
            ("min_labels", min_labels, most, "no client would share a prototype"),
        ):
            if most and given > allowed:
                wrong = f"no client has more than {most} labels of a class; {why}"
                raise UsageError(f"at most {allowed}: {wrong}", key=key, value=given)
