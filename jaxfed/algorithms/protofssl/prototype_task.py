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

    Raises:
        UsageError: no classes.
    """

    num_classes: int
    max_labels: int = 0
    body: Callable[[], Model] | None = None

    def __post_init__(self) -> None:
        """Reject a task without classes."""
        if self.num_classes < 1:
            raise UsageError(f"num_classes={self.num_classes}: use the number of classes")
