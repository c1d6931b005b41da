"""Clients' weights in the mean are those of a method's paper, in library and config alike."""

import pytest

import jaxfed
from jaxfed.algorithms import ALGORITHMS
from jaxfed.config import file
from jaxfed.config.assembly import Ingredients
from jaxfed.config.data.simulation import Simulation
from jaxfed.federation.method import completed, declared, method
from jaxfed.models import from_flax
from jaxfed.training.aggregate import WEIGHTINGS

from flax import nnx  # isort: skip

TRAINED = [n for n, f in ALGORITHMS.items() if "training" in declared(f).takes]
# Equal weights; all others weigh clients by their examples, as McMahan et al. do.
UNIFORM = {
    *("fedavg_xclp", "fedavg_xclp_prototypes", "fedavg_per_client_lp", "fedavg_network"),  # A.2
    *("fedprox", "scaffold", "feddyn", "fedrep", "fedmatch", "fedrgd", "semifl", "fedcon"),
    *("fedsiam", "fedirm", "fedbuff"),
}


def training(**server):
    net = from_flax(lambda rngs: nnx.Linear(4, 3, rngs=rngs), (4,))
    return jaxfed.Training(net, server=jaxfed.ServerTraining(**server))


@pytest.mark.parametrize("name", TRAINED)
def test_every_method_has_the_mean_of_its_paper(name):
    factory = ALGORITHMS[name]
    weighting = declared(factory).of(completed(factory, {})).weighting
    assert weighting == ("uniform" if name in UNIFORM else None)
    given = training(weighting=weighting and WEIGHTINGS[weighting])
    assert given.server.weigh is WEIGHTINGS[weighting or "examples"]


def test_a_training_without_a_weighting_gets_the_methods_and_no_other():
    @method(pseudo_label="none", weighting=lambda given: "cohort" if given.alike else "uniform")
    def mine(*, training, alike=True):
        return training.server.weighting

    assert mine(training=training()) is WEIGHTINGS["cohort"]
    assert mine(training=training(), alike=False) is WEIGHTINGS["uniform"]
    own = WEIGHTINGS["examples"]
    assert mine(training=training(weighting=own)) is own
    assert set(TRAINED) >= UNIFORM
    config = file.load("ml_collections_configs/xclp_digits.py", ["model.hidden=(4,)"])
    assert config.training.weighting == "method"
    of_config = Ingredients(config, Simulation(config).federation(0)).training()
    assert of_config.server.weighting is training().server.weighting is None
