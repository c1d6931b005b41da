"""Masked sums of rows that the server owns, one round of them: what tests of means and of votes share."""

from types import SimpleNamespace

import numpy as np
import pytest
from recording_network import Network
from scipy import stats

from jaxfed.errors import ProtocolError
from jaxfed.secure.row_sums import double_masks, masked
from jaxfed.secure.session.endpoint import SERVER
from jaxfed.secure.session.parties import Session
from jaxfed.secure.session.phases import InProcess

RESILIENT = pytest.mark.parametrize("is_resilient", [False, True], ids=["masked", "resilient"])


def rows_of(num_rows, num_clients):
    return {SERVER: slice(0, num_rows), **dict.fromkeys(range(num_clients), slice(0, 0))}


def recorded_uploads(session, monkeypatch):
    """Everything that the server will receive of clients as uploads, as ring elements."""
    uploads, end = [], session.endpoints[SERVER]
    receive = end.receive

    def recording(sender, kind):
        message = receive(sender, kind)
        if kind.startswith("upload"):
            uploads.append(np.frombuffer(message, "<u8"))
        return message

    monkeypatch.setattr(end, "receive", recording)
    return uploads


def assert_noise_of_three(uploads):
    """The bytes of one client, and of all but one, are uniform."""
    assert len(uploads) == 3
    for some in (uploads[0], uploads[0] + uploads[1]):
        counts = np.bincount(some.view(np.uint8), minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-6


def assert_a_round_of_one_is_refused(part, is_resilient):
    """By the client, whatever the server says of the others."""
    session, rows = Session(2), rows_of(len(part), 2)
    module = double_masks if is_resilient else masked
    client = module.Client(session.endpoints[0], part, rows)
    server = module.Server(session.endpoints[SERVER], rows, part.shape[1])
    server.start(0, [0])
    server.invite(0)
    with pytest.raises(ProtocolError, match="too few for a sum"):
        client.announce() if is_resilient else client.upload()


def view_of_the_server(parts, monkeypatch, *, is_moved):
    """Of three clients; masks of the first two may be shifted by what sets their parts apart."""
    network, original = Network(), masked.masked_rows
    rows = rows_of(len(parts[0]), 3)
    clients = {j: masked.Client(network.endpoint(j), parts[j], rows) for j in range(3)}
    server = masked.Server(network.endpoint(SERVER), rows, parts[0].shape[1])
    turns = iter(range(3))

    def shifted(values, encoding, masks):
        result, client = original(values, encoding, masks), next(turns)
        if is_moved and client < 2:  # a shift of the pair's mask, up here and down there
            mine, theirs = (encoding.encode(parts[j]) for j in (client, 1 - client))
            result += theirs - mine
        return result

    with monkeypatch.context() as patch:
        patch.setattr(masked, "masked_rows", shifted)
        masked.run(InProcess(clients), server)
    return SimpleNamespace(messages=[m.payload for m in network.log], sums=server.own_sums())


def assert_swapped_parts_look_the_same(parts, monkeypatch):
    swapped = {0: parts[1], 1: parts[0], 2: parts[2]}
    ours = view_of_the_server(parts, monkeypatch, is_moved=False)
    theirs = view_of_the_server(swapped, monkeypatch, is_moved=True)
    assert ours.messages == theirs.messages
    np.testing.assert_array_equal(ours.sums, theirs.sums)
    assert not np.array_equal(parts[0], parts[1])
