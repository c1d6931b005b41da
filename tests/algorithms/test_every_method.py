"""What every method must hold, run over ALGORITHMS: a new one is checked here without an edit."""

import sys

import pytest

from jaxfed.algorithms import ALGORITHMS
from jaxfed.federation.client_map import is_one_cpu
from jaxfed.testing import MethodChecks
from jaxfed.testing.method_checks import arranged, assert_equal, played, started, trains

ESTIMATORS = "learner.name=logistic_regression"
SETTINGS = {  # of methods that need other data, or fewer steps
    "semifl": ("federation.labels_at=server",),
    **{name: (f"{name}.steps=10",) for name in ("fedct", "distributed_distillation")},
    **dict.fromkeys(("local_learning", "centralized", "pate"), (ESTIMATORS,)),
    # Eight clients are few to hide among: noise that can be learned through promises next to nothing.
    "dp_fedavg": ("dp_fedavg.noise_multiplier=0.02", "dp_fedavg.clip=2.0"),
    "dp_fedavg_records": ("dp_fedavg_records.clip=2.0",),
    "fedmd": (
        *("federation.public_labeled=true", "fedmd.transfer_steps=20", "fedmd.private_steps=20"),
        *("fedmd.digest_steps=5", "fedmd.revisit_steps=10"),
    ),
}

# What else a method is tried with: networks, where it stands above with estimators.
CASES = {name: (name, SETTINGS.get(name, ())) for name in ALGORITHMS} | {
    "local_learning_networks": ("local_learning", ("local_learning.steps=10",)),
    "centralized_networks": ("centralized", ("centralized.steps=10",)),
    "pate_networks": ("pate", ("pate.steps=10", "pate.student_steps=10", "pate.teacher_rounds=6")),
}

for case, (name, settings) in CASES.items():
    own = {"method": name, "settings": settings}
    checks = type(f"Test_{case}", (MethodChecks,), own)
    globals()[checks.__name__] = checks
del checks  # or it is collected once more


# The one that has most stages; of all others on demand.
TRAIN = [
    pytest.param(name, marks=[] if name == "fedavg_xclp" else pytest.mark.slow)
    for name in filter(trains, ALGORITHMS)
]


@pytest.mark.parametrize("name", TRAIN)
def test_clients_spread_over_devices_agree(name):
    checks = MethodChecks()
    checks.method, checks.settings = name, SETTINGS.get(name, ())
    checks.agrees_with("shard_map")


@pytest.mark.parametrize("name", TRAIN)
def test_several_accelerators_agree(name, monkeypatch):
    """Where all is spread by default and nothing comes back to one device between steps."""
    config, federation, here = arranged(name, settings=SETTINGS.get(name, ()))
    last = config.training.labeled_only_rounds + 2
    start = started(here, federation)
    expected = played(here, config, federation, start, 1, last)
    _take_cores_for_accelerators(monkeypatch)
    there = arranged.__wrapped__(name, settings=SETTINGS.get(name, ()))[2]
    found = played(there, config, federation, start, 1, last)
    assert_equal(expected, found, rtol=1e-4, atol=1e-5)


def _take_cores_for_accelerators(monkeypatch):
    for name, module in list(sys.modules.items()):
        if name.startswith("jaxfed.") and getattr(module, "is_one_cpu", None) is is_one_cpu:
            monkeypatch.setattr(module, "is_one_cpu", lambda: False)
