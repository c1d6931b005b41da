"""What every method must hold, run over ALGORITHMS: a new one is checked here without an edit."""

import pytest

from jaxfed.algorithms import ALGORITHMS
from jaxfed.testing import MethodChecks
from jaxfed.testing.method_checks import trains

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


@pytest.mark.slow
@pytest.mark.parametrize("name", list(filter(trains, ALGORITHMS)))
def test_clients_spread_over_devices_agree(name):
    checks = MethodChecks()
    checks.method, checks.settings = name, SETTINGS.get(name, ())
    checks.agrees_with("shard_map")
