"""Memory that a config demands: of the labelings that its methods make, and of no others."""

import numpy as np
import pytest

from jaxfed.config import file
from jaxfed.config.build import memory_demand
from jaxfed.config.data.preprocessing import check_copies
from jaxfed.data import Dataset
from jaxfed.errors import UsageError
from jaxfed.federation.clients import Federation

NUM_FEATURES = 1000


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["algorithm=fedavg", "baselines=()"], None),
        (["algorithm=fedavg", "baselines=xclp"], "xclp.num_bits"),
        (["algorithm=fedavg_xclp", "baselines=()"], "xclp.num_bits"),
        (["algorithm=sage_xclp", "baselines=()"], "xclp.num_bits"),
        (["algorithm=fedavg_per_client_lp", "baselines=()"], None),
        (
            ["algorithm=wide", "wide.algorithm=xclp", "wide.num_bits=8192", "baselines=()"],
            "wide.num_bits",
        ),
    ],
)
def test_hyperplanes_are_demanded_where_they_are_drawn(monkeypatch, overrides, key):
    monkeypatch.setattr(memory_demand, "available_bytes", lambda: 10**6)
    config = file.load("fedavg_xclp.py", overrides)
    clients = [(np.zeros((3, 2), np.float32), np.array([0, 1, 0]))] * 2
    federation = Federation.from_clients(clients, test=clients[0])
    if key is None:
        memory_demand.check(config, federation, NUM_FEATURES)
        return
    with pytest.raises(UsageError, match=rf"^config\.{key}=\d+: as many hyperplanes"):
        memory_demand.check(config, federation, NUM_FEATURES)


@pytest.mark.parametrize("kind", ["standardized", "identity"])
def test_copies_of_all_parts_are_demanded(monkeypatch, kind):
    """Those of the test split and of public examples, too."""
    x, y = np.ones((20, 3), np.uint8), np.arange(20) % 2
    config = file.load("fedavg_xclp.py", [f"preprocessing.kind={kind}"])
    own, public = (
        Dataset("a", x, y, x_test, y[: len(x_test)], 2, ("a", "b")) for x_test in (x[:10], x[:0])
    )
    monkeypatch.setattr(memory_demand, "available_bytes", lambda: 4 * 3 * (20 + 10 + 20))
    check_copies(own, config, public)
    monkeypatch.setattr(memory_demand, "available_bytes", lambda: 4 * 3 * (20 + 10 + 20) - 1)
    with pytest.raises(UsageError, match=rf"kind='{kind}': a float32 copy of all examples would"):
        check_copies(own, config, public)
