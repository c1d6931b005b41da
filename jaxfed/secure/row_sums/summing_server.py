"""The sum at the server of any protocol of row sums: uploads are added to it, masks removed, rows sent."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from jaxfed.secure.row_sums.mask_streams import SignedSeeds, add_masks, pair_masks, removed
from jaxfed.secure.row_sums.participants import ParticipatingRows
from jaxfed.secure.session.endpoint import SERVER, Endpoint


class SummingServer:
    """Base of the protocols' servers.

    Args:
        endpoint: its end of the session.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def send_sums(self, client: int) -> None:
        """Send one client the sums of its rows."""
        sums = self._sums[self._layout[client]]
        self._endpoint.send(client, f"sums/{self._number}", sums.tobytes())

    def own_sums(self) -> np.ndarray:
        """The sums of the server's own rows, uint64 [n_s, C]; once all uploads are there, without masks."""
        return self._sums[self._layout[SERVER]]

    def _begin(self, number: int, layout: ParticipatingRows) -> None:
        """Begin a round with a sum of 0 over these rows."""
        self._number, self._layout = number, layout
        self._sums = np.zeros(layout.shape, np.uint64)

    def _add_upload(self, client: int) -> None:
        """Receive one client's upload, and add it to the others' rows."""
        message = self._endpoint.receive(client, f"upload/{self._number}")
        self._layout.add_upload(self._sums, message, client)

    def _remove_masks(
        self, survivor: int, self_seed: bytes, pair_seeds: Mapping[int, bytes]
    ) -> None:
        """Remove a survivor's double masks: its own one, and those shared with clients that left."""
        masks: SignedSeeds = [(self_seed, 1), *pair_masks(survivor, pair_seeds)]
        own = self._layout[survivor]
        without_masks = self._sums[own].copy()  # it uploaded nothing there
        add_masks(self._sums, removed(masks))
        self._sums[own] = without_masks
