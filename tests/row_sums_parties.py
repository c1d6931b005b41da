"""Parties of secure row sums on a recording network, and what their sums must be."""

import numpy as np
from recording_network import Network

from jaxfed.secure.primitives.ring import FixedPoint
from jaxfed.secure.row_sums import double_masks, masked
from jaxfed.secure.session.endpoint import SERVER
from jaxfed.secure.session.phases import InProcess

MODULES = {
    "restarting": (masked, {}),
    "resilient": (double_masks, {}),
    "signed": (double_masks, {"signed": True}),
}
PROTOCOLS = list(MODULES)


def matrices(sizes, num_classes=3, seed=0):
    """Z^(j) of every client and everybody's rows."""
    rng = np.random.default_rng(seed)
    stops = np.cumsum(sizes)
    rows = {
        j: slice(int(stop) - size, int(stop))
        for j, (size, stop) in enumerate(zip(sizes, stops, strict=True))
    }
    return [rng.normal(size=(int(stops[-1]), num_classes)).astype(np.float32) for _ in sizes], rows


def parties(protocol, network, values, rows, claimed=()):
    """Clients and server with ends of a recording network, or of a session."""
    end = network.endpoint if isinstance(network, Network) else network.endpoints.__getitem__
    ends = [end(j) for j in range(len(values))]
    for label in claimed:
        for own in ends:
            own.claim(label)
    module, options = MODULES[protocol]
    clients = {j: module.Client(ends[j], values[j], rows, **options) for j in range(len(values))}
    return clients, module.Server(end(SERVER), rows, values[0].shape[1], **options)


def run(protocol, network, values, rows, *, first_round=0, **options):
    clients, server = parties(protocol, network, values, rows, **options)
    return MODULES[protocol][0].run(InProcess(clients), server, first_round=first_round)


def exact(values, rows, contributors, client):
    """The sum in the ring: what fixed-point numbers add up to, exactly."""
    encoding = FixedPoint(len(values))
    own = [encoding.encode(values[j][rows[client]]) for j in contributors]
    return encoding.decode(np.sum(own, axis=0, dtype=np.uint64))


def uploads(network):
    return {m.sender: np.frombuffer(m.payload, "<u8") for m in network.log if m.kind == "upload/0"}
