"""Numbers of examples by who holds them, said once at the start of a run and left in summary.json."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from jaxfed.federation.clients import Federation


class Holdings(NamedTuple):
    """Numbers of examples, of the first repeat.

    Fields:
        clients: M.
        labeled: at clients, with a label to learn from.
        unlabeled: at clients, without one.
        server: at a server with labels.
        public: everybody's.
        validation: held out to select trained models by.
        test: held out to test on, clients' new points among them.
        dropped: examples of the data that are none of these.
        without_label: examples that came without a label from the data, dropped ones among them.
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

    def line(self, name: str) -> str:
        """One line for people, of the data set of this name."""
        server = f"the server {self.server:,} labeled, " if self.server else ""
        unknown = f"; {self.without_label:,} came without a label" if self.without_label else ""
        clients = f"{self.clients:,} client{'s' if self.clients > 1 else ''}"
        return (
            f"{name}: {server}{clients} {self.labeled:,} labeled and {self.unlabeled:,} unlabeled, public "
            f"{self.public:,}, validation {self.validation:,}, test {self.test:,}, dropped {self.dropped:,}"
            f"{unknown}"
        )


def holdings(y: np.ndarray, federation: Federation, *, has_public_set: bool) -> Holdings:
    """The numbers in a federation that was made of this data set.

    Args:
        y: int [n], classes of both splits as they were read, before a part of them was taken; -1: none.
        federation: with or without examples.
        has_public_set: whether public examples are of another data set.
    """
    labeled, unlabeled, new = (sum(map(len, points)) for points in federation.partition)
    server, public = len(federation.server), len(federation.public)
    validation, test = len(federation.validation), len(federation.test) + new
    of_these = labeled + unlabeled + server + validation + test + (0 if has_public_set else public)
    return Holdings(
        federation.num_clients,
        labeled,
        unlabeled,
        server,
        public,
        validation,
        test,
        dropped=len(y) - of_these,
        without_label=int(np.count_nonzero(y < 0)),
    )
