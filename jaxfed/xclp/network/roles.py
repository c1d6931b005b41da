"""A client's party of one labeling: its objects of the protocols, their inputs, and its labels at the end.

    client, kept, frames = take_part(p, step, own, request, vectors, labels)    # one letter
    client.prediction()                                                         # after the last one

The terms of a labeling's session (`jaxfed.secure.session.network.exchanges`) have the seed of Pi besides.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxfed.errors import ProtocolError
from jaxfed.secure import cross_steps, largest_value
from jaxfed.secure.hamming import masked, matrix
from jaxfed.secure.primitives import projection
from jaxfed.secure.primitives.fixed_point import FixedPoint
from jaxfed.secure.row_sums.server_sums import CLIENT_STEPS
from jaxfed.secure.session.key_agreement import RandomBytes
from jaxfed.secure.session.network import exchanges
from jaxfed.secure.session.network.replayed_party import ReplayedParty, Role
from jaxfed.xclp.inputs import checked
from jaxfed.xclp.settings.parameters import Parameters
from jaxfed.xclp.steps.client_predictions import predicted
from jaxfed.xclp.steps.codes import client_codes
from jaxfed.xclp.steps.contributions import ColumnsClient
from jaxfed.xclp.steps.knn_graph import one_hot_labels
from jaxfed.xclp.steps.prediction import Prediction
from jaxfed.xclp.steps.projection import projection_of_seed
from jaxfed.xclp.steps.row_sums import class_counts, client_scores, with_prior

OWN, CODES, COLUMNS, SUMS, LARGEST = "own", "codes", "columns", "sums", "largest"


def take_part(
    p: Parameters,
    step: str,
    own: Mapping[str, Any],
    request: Mapping[str, Any],
    vectors: np.ndarray,
    labels: np.ndarray,
    *,
    random_bytes: RandomBytes = secrets.token_bytes,
) -> tuple[LabelingClient, dict[str, Any], bytes]:
    """Answer one letter of a labeling.

    Args:
        p: the settings.
        step: name of the exchange.
        own: the client's state, with the fields of `exchanges.NO_SESSION`.
        request: the server's.
        vectors: V^(j), [n_j, d]; the same ones in all exchanges.
        labels: int [n_j], -1 where unlabeled.
        random_bytes: source of the bytes that the client's party is replayed from.

    Returns:
        The client, its new state's fields but for "round", and the frames of its reply.

    Raises:
        ProtocolError: a letter that does not belong to the state.
    """
    address, seed = exchanges.terms_of(request, "address", "seed")
    client: LabelingClient

    def party_of(drawn: bytes) -> ReplayedParty:
        nonlocal client
        client = LabelingClient(vectors, labels, replace(p, seed=seed), address, drawn)
        return client.party

    kept, frames = exchanges.answered(step, own, request, party_of, random_bytes=random_bytes)
    return client, kept, frames


class LabelingClient:
    """A client during one labeling.

    Args:
        vectors: V^(j), [n_j, d].
        labels: int [n_j], -1 where unlabeled.
        p: the settings, with the seed of Pi.
        address: the client's address in the session.
        seed: 32 random bytes of its own.
    """

    def __init__(
        self, vectors: np.ndarray, labels: np.ndarray, p: Parameters, address: int, seed: bytes
    ) -> None:
        [self._vectors], [own] = checked([vectors], [labels], p.num_classes)
        self._labels, self._p = one_hot_labels(own, p.num_classes), p
        self.party = ReplayedParty(address, seed, self._roles())

    @cached_property
    def codes(self) -> np.ndarray:
        """B^(j), uint32 [n_j, L / 32]; after setup."""
        p, dim = self._p, self._vectors.shape[1]
        if not len(self._vectors):
            return np.zeros((0, p.num_bits // 32), np.uint32)
        if p.projection == "group_secret":
            assert self.party.endpoint is not None
            secret = self.party.endpoint.group_seed("xclp/projection")
            planes = jnp.asarray(projection.hyperplanes(secret, p.num_bits, dim))
        else:
            planes = projection_of_seed(p.seed, p.num_bits, dim, None)
        return client_codes([self._vectors], planes)[0]

    def prediction(self) -> Prediction:
        """Labels, confidences and scores of its points; -1 and zeros if it did not receive its sums."""
        found = self._without_others()
        if self._p.relative_confidence:
            largest = self.party.results.get((LARGEST, "hear"))
            if largest is None:
                return predicted([np.zeros_like(found.scores)])[0]
            return found._replace(confidences=found.confidences / (largest or np.float32(1)))
        return found

    def _without_others(self) -> Prediction:
        """Line 15 and 16, before confidences are divided by the largest of all clients."""
        p, sums = self._p, self.party.results.get((SUMS, "finish"))
        z = np.zeros((len(self._vectors), p.num_classes), np.float32)
        if sums is not None:
            values, cohort = (part.astype(np.float32) for part in (sums[: len(z)], sums[len(z) :]))
            z = client_scores(values, cohort, p)
            z = with_prior(z, self._labels.sum(axis=0), cohort.sum(axis=0), p)
        return predicted([z])[0]

    def _roles(self) -> dict[str, Role]:
        def role(
            constructor: Callable[..., Any], own: Callable[[], Any], steps: Any, *plan: str
        ) -> Role:
            return Role(constructor, lambda _: own(), frozenset(steps), frozenset(plan))

        found = {
            OWN: role(matrix.OwnDistances, lambda: self.codes, ["send_own"]),
            CODES: role(
                masked.client, lambda: self.codes, ["send_points", "send_shares"], "sizes", "run"
            ),
            COLUMNS: role(
                self._columns_client,
                lambda: self._labels,
                ["send_positions", "receive_columns", "finished"],
                "num_points",
            ),
            SUMS: role(
                self._sums_client,
                self._contribution,
                CLIENT_STEPS,
                *("rows", "is_resilient", "signed", "shorter"),
            ),
        }
        if self._p.relative_confidence:
            found[LARGEST] = role(
                largest_value.Client,
                lambda: self._without_others().confidences.max(initial=0),
                ["send", "hear"],
            )
        return found

    def _contribution(self) -> tuple[np.ndarray, np.ndarray]:
        if (COLUMNS, "finished") not in self.party.results:
            raise ProtocolError("row sums before the columns")
        assert self.party.endpoint is not None
        limit = FixedPoint(len(self.party.endpoint.clients)).largest
        if self._columns.reach.max(initial=0) > 0.99 * limit:
            # Uploads refuse larger sums, and so would tell the server which labels are equal.
            raise ProtocolError("columns of S that row sums cannot hold, whatever the labels")
        value, _ = self.party.results[COLUMNS, "finished"]
        return value, class_counts(self._labels, are_needed=self._p.needs_class_counts)

    def _columns_client(self, endpoint: Any, own: Any, **plan: Any) -> ColumnsClient:
        self._columns = ColumnsClient(endpoint, own, **plan)
        return self._columns

    def _sums_client(self, endpoint: Any, own: Any, **plan: Any) -> Any:
        """A client of row sums, by the protocol of its own settings."""
        name = self._p.row_sums
        wanted = name != "masked", name == "masked_resilient_signed"
        if (plan["is_resilient"], plan["signed"]) != wanted:
            raise ProtocolError("row sums by another protocol than the settings say")
        rows = plan["shorter"].get(endpoint.address)
        if rows is None or rows.stop - rows.start != len(self._vectors):
            raise ProtocolError("row sums with other rows than this client's")
        return cross_steps.client_with_totals(endpoint, own, **plan)
