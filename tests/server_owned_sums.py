"""Masked sums that the server reads: what it receives of clients, and that it is noise."""

import numpy as np
import pytest
from scipy import stats

from jaxfed.secure.session.endpoint import SERVER

RESILIENT = pytest.mark.parametrize("is_resilient", [False, True], ids=["masked", "resilient"])


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
