"""Sums of one session never share a mask, however many rounds their dropouts have cost."""

from collections import defaultdict
from itertools import combinations

import numpy as np
import pytest

from jaxfed.secure.cross_steps import sums_of_rows
from jaxfed.secure.row_sums import double_masks, masked, masked_rows, server_sums
from jaxfed.secure.session.channel import Presence
from jaxfed.secure.session.parties import Session

NUM_CLIENTS = 5
RESTARTED_AT = {False: "upload", True: "mask_key"}  # is_resilient -> where leaving costs a round
VALUES = {j: np.full((6, 2), j + 1.0) for j in range(NUM_CLIENTS)}


def at_the_server(session, is_resilient):
    return server_sums.server_sums(session, VALUES, is_resilient=is_resilient)


def at_the_clients(session, is_resilient):
    rows = {j: slice(j, j + 1) for j in range(NUM_CLIENTS)}
    found = sums_of_rows(session, VALUES, rows, resilient=is_resilient)
    return next(iter(found.values()))


@pytest.fixture
def seeds_of_uploads(monkeypatch):
    """Client -> the seeds of each of its uploads, those that the upload is masked by."""
    found, current = defaultdict(list), []
    expand = masked_rows._streams

    def recording(masks, first):
        if current:
            found[current[-1]][-1].update(seed for seed, _ in masks)
        return expand(masks, first)

    monkeypatch.setattr(masked_rows, "_streams", recording)
    for module in (masked, double_masks):
        upload = module.Client.upload

        def uploading(self, upload=upload):
            found[self._own].append(set())
            current.append(self._own)
            try:
                upload(self)
            finally:
                current.pop()

        monkeypatch.setattr(module.Client, "upload", uploading)
    return found


@pytest.mark.parametrize("is_resilient", [False, True], ids=["masked", "resilient"])
@pytest.mark.parametrize(
    "kinds",
    [
        (at_the_server, at_the_server),
        (at_the_clients, at_the_clients),
        (at_the_server, at_the_clients, at_the_server),
    ],
)
def test_no_mask_serves_two_sums(kinds, is_resilient, seeds_of_uploads):
    """One client leaves in each round of the first sum until two are left; then come further sums."""
    presence = Presence()
    for number, client in enumerate((4, 3, 2)):  # each after the others have acted in the round
        presence.lose_when(client, "send", RESTARTED_AT[is_resilient], after=number)
    session = Session(NUM_CLIENTS, presence=presence)
    for sum_of in kinds:
        np.testing.assert_allclose(sum_of(session, is_resilient)[0], 1.0 + 2.0)
    assert session.clients == [0, 1]
    for uploads in seeds_of_uploads.values():
        assert all(uploads)
        for one, other in combinations(uploads, 2):
            assert not one & other
    rounds = 1 if is_resilient else NUM_CLIENTS - 1  # before the double masks nothing is sent
    assert len(seeds_of_uploads[0]) == rounds + len(kinds) - 1
