"""SecureHamming by oblivious transfer (XCLP, Section 3.2, with the transfers extended): `ot`.

The paper's steps for a point b of client j and a point b' of client k, in Z_{2^w} with 2^w > L:

    1) j draws r_1 ... r_L and offers z_l^0 = r_l + b_l and z_l^1 = r_l + (1 - b_l) for l = 1 ... L;
    2) k chooses by b'_l in an oblivious transfer and receives t_l = r_l + (b_l xor b'_l);
    3) j sends R = sum_l r_l to the server, k sends T = sum_l t_l to the server;
    4) the server computes T - R = h(b, b').

Two corrections of the printed text are in these steps:

  * The printed ring is Z_L, where the distances 0 and L would be the same.
  * R and T go to the server only. With both, a client would have the distance.

This module does the same with extended transfers. Client `first` is j with points x_i, and it sends. Client
`second` is k with points y_m, and it receives. Message by message, with kappa = 128 (`oblivious_transfer`,
`transfer_extension`, `transferred_sums`):

    request     first -> second    PK_0 of 128 base transfers                    32 kappa bytes
    response    second -> first    r G                                           32 bytes
  for every block of V of second's vectors:
    correction  second -> first    u, the masked choices y                       16 V L bytes
    payload     first -> second    tau, for every block of n_b <= 512 points     2 V L n_b bytes
    first_sums  first -> server    R                                             2 V n_j bytes
    second_sums second -> server   T                                             2 V n_j bytes

The server computes h = T - R mod 2^16. The paper's steps 1 and 2 move two values a transfer. Here one
correction is enough, because the pad itself serves as one of the two.

Parties that follow the protocol learn only the number of each other's points; the server learns h. (SHADE's
variant against others was broken by Kiraz, Genc and Kardas, 2015.)
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator

import numpy as np

from jaxfed.secure.hamming import transferred_sums
from jaxfed.secure.hamming.pair import PairServer, pair_kind
from jaxfed.secure.hamming.transferred_sums import (
    MAX_POINTS,
    ReceiverSums,
    SenderPoints,
    sums_from_bytes,
    sums_to_bytes,
)
from jaxfed.secure.primitives import transfer_extension
from jaxfed.secure.primitives.blocks import Block, bits_of, checked_distances, ranges
from jaxfed.secure.primitives.oblivious_transfer import TransferReceiver, transfer_keys
from jaxfed.secure.primitives.ring import ring_bits
from jaxfed.secure.session.endpoint import SERVER, Endpoint

RandomBytes = Callable[[int], bytes]

PAYLOAD_BYTES = 1 << 24  # of a message, about: sets how many vectors make a block


def vectors_per_block(num_bits: int) -> int:
    """V: the number of vectors for a full payload of about `PAYLOAD_BYTES`."""
    return max(1, PAYLOAD_BYTES // transferred_sums.payload_size(1, num_bits, MAX_POINTS))


class First:
    """The sending client; `run` is a number never used before in the session."""

    def __init__(
        self,
        endpoint: Endpoint,
        second: int,
        codes: np.ndarray,
        run: int,
        *,
        random_bytes: RandomBytes = secrets.token_bytes,
    ) -> None:
        self._endpoint, self._second = endpoint, second
        self._num_points, self._num_bits = len(codes), 32 * codes.shape[1]
        ring_bits(self._num_bits)  # refuses an L that 2^16 does not hold
        packed = random_bytes(transfer_extension.NUM_BASE // 8)
        self._choices = np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little").tolist()
        self._base = TransferReceiver(
            self._choices,
            endpoint.pair_seed(second, f"ot/{run}"),  # a context of this run and pair alone
            random_bytes=random_bytes,
        )
        self._points = [
            SenderPoints(bits_of(codes[block.start : block.stop]), block.start)
            for block in ranges(self._num_points, MAX_POINTS)
        ]

    def request(self) -> None:
        """Send the request of the base transfers."""
        self._endpoint.send(self._second, "request", self._base.request)

    def finish_setup(self) -> None:
        """Receive the chosen seeds."""
        keys = self._base.keys(self._endpoint.receive(self._second, "response"))
        self._extension = transfer_extension.ExtensionSender(keys, self._choices)

    def extend(self, num_vectors: int) -> None:
        """Receive the correction for the next vectors."""
        correction = self._endpoint.receive(self._second, "correction")
        self._rows = self._extension.extend(correction, num_vectors * self._num_bits)
        self._sums: list[np.ndarray] = []

    def transfer(self, block: int) -> None:
        """Send the payload of one block of own points."""
        tau, sums = self._points[block].transfer(self._rows, self._extension.secret_row)
        self._endpoint.send(self._second, "payload", tau)
        self._sums.append(sums)

    def send_sums(self) -> None:
        """Send R of all own points to the server."""
        kind = pair_kind("first_sums", self._endpoint.address, self._second)
        self._endpoint.send(SERVER, kind, sums_to_bytes(self._sums))


class Second:
    """The receiving client; `num_points` = n_j is the number of first's points."""

    def __init__(
        self,
        endpoint: Endpoint,
        first: int,
        codes: np.ndarray,
        num_points: int,
        run: int,
        *,
        random_bytes: RandomBytes = secrets.token_bytes,
    ) -> None:
        self._endpoint, self._first, self._codes = endpoint, first, codes
        self._num_bits = 32 * codes.shape[1]
        ring_bits(self._num_bits)
        self._context = endpoint.pair_seed(first, f"ot/{run}")
        self._random_bytes = random_bytes
        self._receivers = [
            ReceiverSums(len(block), self._num_bits, block.start)
            for block in ranges(num_points, MAX_POINTS)
        ]

    def respond(self) -> None:
        """Answer the base transfers."""
        response, pairs = transfer_keys(
            self._endpoint.receive(self._first, "request"),
            transfer_extension.NUM_BASE,
            self._context,
            random_bytes=self._random_bytes,
        )
        self._extension = transfer_extension.ExtensionReceiver(pairs)
        self._endpoint.send(self._first, "response", response)

    def choose(self, vectors: range) -> None:
        """Send the correction for some of the own vectors."""
        codes = np.ascontiguousarray(self._codes[vectors.start : vectors.stop], "<u4")
        self._choices = bits_of(codes)
        correction, self._rows = self._extension.extend(codes.view(np.uint8).reshape(-1))
        self._endpoint.send(self._first, "correction", correction)
        self._sums: list[np.ndarray] = []

    def accumulate(self, block: int) -> None:
        """Receive the payload of one block of first's points."""
        tau = self._endpoint.receive(self._first, "payload")
        self._sums.append(self._receivers[block].sums(self._rows, self._choices, tau))

    def send_sums(self) -> None:
        """Send T of all of first's points to the server."""
        kind = pair_kind("second_sums", self._first, self._endpoint.address)
        self._endpoint.send(SERVER, kind, sums_to_bytes(self._sums))


class Server(PairServer):
    """The server's part for one pair of clients, with n_j and n_k points of L bits."""

    KINDS = ("first_sums", "second_sums")

    def __init__(
        self, endpoint: Endpoint, first: int, second: int, num_points: int, num_bits: int
    ) -> None:
        super().__init__(endpoint, first, second, num_bits)
        self._num_points = num_points

    def combine(self, vectors: range) -> Block:
        """Distances of all of first's points to some of second's, from R and T."""
        shape = len(vectors), self._num_points
        r = sums_from_bytes(self._receive(self._first, "first_sums"), shape)
        t = sums_from_bytes(self._receive(self._second, "second_sums"), shape)
        distances = checked_distances((t - r).T, self._num_bits)
        return Block(self._first, self._second, range(self._num_points), vectors, distances)


def run_pair(
    first: First, second: Second, server: Server, sizes: tuple[int, int, int]
) -> Iterator[Block]:
    """Run the protocol of one pair of clients with n_j and n_k points of L bits; yields finished blocks."""
    num_points, num_vectors, num_bits = sizes
    if not (num_points and num_vectors):
        return
    with server.until_dropout():
        first.request()
        second.respond()
        first.finish_setup()
        for vectors in ranges(num_vectors, vectors_per_block(num_bits)):
            second.choose(vectors)
            first.extend(len(vectors))
            for block, _ in enumerate(ranges(num_points, MAX_POINTS)):
                first.transfer(block)
                second.accumulate(block)
            first.send_sums()
            second.send_sums()
            yield server.combine(vectors)
