"""Numbers of examples by holder, printed once at the start of a run and stored in summary.json."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from jaxfed.data.client_rows import ClientRows
from jaxfed.federation.clients import Federation

_FEW_TEST, _FEW_VALIDATION = 100, 30


class Holdings(NamedTuple):
    """Numbers of examples in the first repeat.

    Fields:
        clients: M.
        labeled: at clients, with a label to learn from.
        unlabeled: at clients, without a label.
        server: at a server with labels.
        public: shared by everybody.
        validation: held out for model selection.
        test: held out for testing, including clients' new points.
        dropped: all other examples of the data.
        without_label: examples without a label in the data, including dropped ones.
        test_classes: test examples of each class that any has.
        test_rows: "shared" by all repeats, or drawn "by_repeat".
    """

    clients: int
    labeled: int
    unlabeled: int
    server: int
    public: int
    validation: int
    test: int
    dropped: int
    without_label: int
    test_classes: tuple[int, ...] = ()
    test_rows: str = "shared"

    @classmethod
    def of(
        cls, y: np.ndarray, federation: Federation, *, has_public_set: bool, test_rows: str
    ) -> Holdings:
        """Count the examples of a federation, with or without examples, made from a data set.

        Args:
            y: int [n], classes of all splits as they were read, before subsampling; -1: none.
            federation: the clients.
            has_public_set: True if public examples come from another data set.
            test_rows: as in `Holdings`.
        """
        new = ClientRows.of(federation.partition.new).joined
        tested = federation.y[np.concatenate([federation.test, new])]
        of_each = np.bincount(tested[tested >= 0])
        labeled, unlabeled, _ = federation.partition.sizes.sum(axis=1).tolist()
        server, public = len(federation.server), len(federation.public)
        validation, test = len(federation.validation), len(tested)
        held = labeled + unlabeled + server + validation + test + public * (not has_public_set)
        return cls(
            *(federation.num_clients, labeled, unlabeled, server, public, validation, test),
            dropped=len(y) - held,
            without_label=int(np.count_nonzero(y < 0)),
            test_classes=tuple(of_each[of_each > 0].tolist()),
            test_rows=test_rows,
        )

    def line(self, name: str) -> str:
        """Return a readable line on the data set of this name."""
        server = f"the server {self.server:,} labeled, " if self.server else ""
        unknown = f"; {self.without_label:,} came without a label" if self.without_label else ""
        clients = f"{self.clients:,} client{'s' if self.clients > 1 else ''}"
        return (
            f"{name}: {server}{clients} {self.labeled:,} labeled and {self.unlabeled:,} unlabeled, public "
            f"{self.public:,}, validation {self.validation:,}, test {self.test:,}, dropped {self.dropped:,}"
            f"{unknown}"
        )


def few_rows(test: int, validation: int) -> list[str]:
    """Return warnings about test or validation examples that are too few to compare methods."""
    found = []
    if 0 < test < _FEW_TEST:
        found.append(
            f"{test} test rows, fewer than {_FEW_TEST}: differences between methods depend on the choice of "
            "rows; hold out more (config.dataset.test_fraction), or raise config.num_repeats"
        )
    if 0 < validation < _FEW_VALIDATION:
        found.append(
            f"{validation} validation rows, fewer than {_FEW_VALIDATION}: they select states almost by "
            "chance; hold out more (config.dataset.validation_fraction), or none to take the last states"
        )
    return found
