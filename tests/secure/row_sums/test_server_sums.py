"""Sums that the server reads, by the parties of row sums: who may be in one, and what the server sees.

Model updates, means of classes and votes are such sums; what they add is tested with them.
"""

from types import SimpleNamespace

import numpy as np
import pytest
from recording_network import Network
from server_owned_sums import RESILIENT

from jaxfed.errors import ProtocolError
from jaxfed.secure.primitives import packed_counts
from jaxfed.secure.row_sums import double_masks, masked
from jaxfed.secure.session.endpoint import SERVER
from jaxfed.secure.session.parties import Session
from jaxfed.secure.session.phases import InProcess

RNG = np.random.default_rng(0)
PARTS = {  # of three clients
    "numbers": RNG.normal(size=(3, 4, 6)),
    "votes": np.stack(
        [packed_counts.pack(marks, 3)[:, None] for marks in RNG.integers(0, 2, (3, 20, 3))]
    ),
}


def rows_of(num_rows, num_clients):
    return {SERVER: slice(0, num_rows), **dict.fromkeys(range(num_clients), slice(0, 0))}


@RESILIENT
@pytest.mark.parametrize("kind", PARTS)
def test_a_round_of_one_is_refused_by_the_client(kind, is_resilient):
    """Whatever the server says of the others."""
    part, session = PARTS[kind][0], Session(2)
    rows, module = rows_of(len(part), 2), double_masks if is_resilient else masked
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


@pytest.mark.parametrize("kind", PARTS)
def test_the_view_of_the_server_depends_on_the_sum_only(kind, monkeypatch):
    """Clients that swap their parts, under masks shifted by the difference, look the same."""
    parts = PARTS[kind]
    ours = view_of_the_server(parts, monkeypatch, is_moved=False)
    theirs = view_of_the_server(parts[[1, 0, 2]], monkeypatch, is_moved=True)
    assert ours.messages == theirs.messages
    np.testing.assert_array_equal(ours.sums, theirs.sums)
    assert not np.array_equal(parts[0], parts[1])
