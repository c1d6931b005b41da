"""Settings whose arrays exceed the memory are refused by their keys, before data are copied or trained on."""

import numpy as np
import pytest

from jaxfed.config import file
from jaxfed.config.assembly import make_algorithm
from jaxfed.errors import UsageError
from jaxfed.federation.clients import Federation

ORDER = "an order of 3 examples each would take 1.2 MB of memory, there are 1 MB"


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("training.epochs=100000", "training.epochs"),
        ("fedavg.training.epochs=100000", "fedavg.training.epochs"),
    ],
)
def test_epochs_are_refused_as_they_were_set(monkeypatch, override, key):
    monkeypatch.setattr("jaxfed.federation.execution.settings.available_bytes", lambda: 10**6)
    config = file.load(
        "fedavg_xclp.py", ["algorithm=fedavg", "preprocessing.kind=identity", override]
    )
    clients = [(np.zeros((3, 2), np.float32), np.array([0, 1, 0]))] * 2
    with pytest.raises(UsageError) as caught:
        make_algorithm(config, "fedavg", Federation.from_clients(clients, test=clients[0]))
    assert str(caught.value) == f"config.{key}=100000: {ORDER}"
