"""Memory in errors: numbers of bytes, and settings whose arrays would not fit."""

import jax
import pytest

from jaxfed.errors import BeyondMemory
from jaxfed.federation.execution.settings import available_bytes, bytes_text, require


def test_a_device_that_reports_its_memory_has_it(monkeypatch):
    class Told:
        def memory_stats(self):
            return {"bytes_limit": 5_000_000_000}

    monkeypatch.setattr(jax, "local_devices", lambda: [Told()])
    assert available_bytes() == 5_000_000_000


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(17, "17 B"), (1_380_000_001, "1.39 GB"), (300 * 10**9, "300 GB"), (2 * 10**12, "2,000 GB")],
)
def test_bytes_are_never_said_to_be_fewer(num_bytes, text):
    assert bytes_text(num_bytes) == text


def test_a_setting_whose_array_does_not_fit_is_refused_by_its_key(monkeypatch):
    monkeypatch.setattr("jaxfed.federation.execution.settings.available_bytes", lambda: 1000)
    require(1000, "an order", key="epochs", value=3)
    with pytest.raises(BeyondMemory) as caught:
        require(1001, "an order", key="epochs", value=3, owner="config.training")
    refused = "config.training.epochs=3: an order would take 1.01 kB of memory, there are 1 kB"
    assert str(caught.value) == refused
