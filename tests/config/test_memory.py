"""Settings whose arrays exceed the memory are refused by their keys, before data are copied or trained on."""

import numpy as np
import pytest

from jaxfed.config import file
from jaxfed.config.assembly import make_algorithm
from jaxfed.config.data import feasibility
from jaxfed.config.data.feasibility import check_copies
from jaxfed.config.data.preprocessing import Parts
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


@pytest.mark.parametrize(
    ("overrides", "refused"),
    [
        (["algorithm=fedavg", "baselines=()"], None),
        (["algorithm=fedavg", "baselines=xclp"], "xclp.num_bits=4096: as many hyperplanes"),
        (["algorithm=fedavg_xclp", "baselines=()"], "xclp.num_bits=4096: as many hyperplanes"),
        (["algorithm=sage_xclp", "baselines=()"], "xclp.num_bits=4096: as many hyperplanes"),
        (["algorithm=fedavg_per_client_lp", "baselines=()"], None),
        (
            ["algorithm=fedavg_per_client_lp", "baselines=()", "per_client_lp.num_neighbors=50000"],
            "per_client_lp.num_neighbors=50000: as many neighbors of 3 points",
        ),
        (
            ["algorithm=wide", "wide.algorithm=xclp", "wide.num_bits=8192", "baselines=()"],
            "wide.num_bits=8192: as many hyperplanes",
        ),
        (
            ["algorithm=protofssl", "baselines=()", "protofssl.unlabeled_query=1000"],
            "protofssl.unlabeled_query=1000: so many examples a step",
        ),
    ],
)
def test_arrays_of_a_chosen_method_are_refused_before_any_runs(monkeypatch, overrides, refused):
    monkeypatch.setattr("jaxfed.federation.execution.settings.available_bytes", lambda: 10**6)
    config = file.load("fedavg_xclp.py", overrides)
    clients = [(np.zeros((3, 2), np.float32), np.array([0, 1, 0]))] * 2
    federation = Federation.from_clients(clients, test=clients[0])
    if refused is None:
        feasibility.check_memory(config, federation, 1000)
        return
    with pytest.raises(UsageError) as caught:
        feasibility.check_memory(config, federation, 1000)
    assert str(caught.value).startswith(f"config.{refused} would take ")


@pytest.mark.parametrize("kind", ["standardized", "identity"])
def test_copies_of_all_parts_are_demanded(monkeypatch, kind):
    """Those of the test split and of public examples, too."""
    x = np.ones((20, 3), np.uint8)
    config = file.load("fedavg_xclp.py", [f"preprocessing.kind={kind}"])
    parts = Parts(train=x, test=x[:10], public=x)
    available = "jaxfed.federation.execution.settings.available_bytes"
    monkeypatch.setattr(available, lambda: 4 * 3 * (20 + 10 + 20))
    check_copies(parts, config)
    monkeypatch.setattr(available, lambda: 4 * 3 * (20 + 10 + 20) - 1)
    with pytest.raises(UsageError, match=rf"kind='{kind}': a float32 copy of all examples would"):
        check_copies(parts, config)
