"""What methods refuse: values, settings that do not go together, trainings and clients that do not suit."""

import ast
from dataclasses import replace

import jax
import pytest
import refusals
from small_training import clients_and_server, double, training_of
from toy_learner import NUM_CLASSES, clients, toy

from jaxfed.algorithms import ALGORITHMS
from jaxfed.algorithms.protofssl.settings import PrototypeTask
from jaxfed.errors import UsageError
from jaxfed.federation.method import checked, declared, method_settings
from jaxfed.federation.rounds import Sampling
from jaxfed.models.mlp import mlp
from jaxfed.settings import check_value
from jaxfed.training.local.batches import Batches

FEDERATION = clients()
KEY = jax.random.key(0)
WHOLE = Batches("joint", size=64, epochs=2)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_setting_has_a_rule(name):
    for key, one in method_settings(ALGORITHMS[name]).items():
        with pytest.raises(UsageError):
            check_value(key, object(), one.hint)


VALUES = """
cbafed.residual_rounds=-1: use integers from 0 on, 0: never
dp_fedavg.noise_multiplier=-1: use numbers from 0 to
dp_fedavg_records.share=0.0: use numbers from 0.0001 to 1
dp_fedavg_records.delta=1.0: use numbers above 0 and below 1
dsfl.subset=-1: use integers from 0 on, 0 is all public examples
feddyn.alpha=0: use numbers above 0
fedct.stability_delta=0.7: use numbers above 0 and up to 0.5
fedct.mask_partners=-1: use integers from 0 on, even, 0 is all
fedct.epsilon=0.1: is a setting of noise, and release='none' adds none; set release='xor'
fedct.sensitivity='estimated': is a setting of noise, and release='none'
fedct.stability_rate=0.1: does not go with sensitivity='rows'; use 0
fedct.presence='1@upload': use lists of text, each 'CLIENT@STAGE'
fedct.presence=('1@upload',): ...stage 'upload' needs sums under masks; sums='plaintext'
fedmatch.l2_weight=-1.0: use numbers from 0 on
fedsiam.supervised_over='unlabeled': choose one of 'labeled', 'batch'
fedtgp.server_rate=nan: use numbers from 0 on
mixmatch.alpha=0: use numbers above 0
protofssl.prototype_sums='masked': does not go with prototypes='local'; set prototypes='global'
semifl.threshold=2: use numbers from 0 to 1
"""


def given(line):
    """The check of a line's value, whose key needs no owner in what a dataclass says."""
    name, _, rest = line.partition(".")
    key, _, rest = rest.partition("=")
    text = rest.partition(": ")[0]
    value = float("nan") if text == "nan" else ast.literal_eval(text)

    def call():
        try:
            checked(ALGORITHMS[name], {"num_classes": 2, key: value})
        except UsageError as error:
            error.owner = error.owner or name
            raise

    return call


def together(name, **settings):
    return lambda: checked(ALGORITHMS[name], {"num_classes": 2, **settings})


NOISE = {"release": "xor", "epsilon": 0.5}
NEWEST = {"helper_choice": "newest", "prototype_sums": "masked", "prototypes": "global"}
TOGETHER = {
    "noise_multiplier=1.0: target_epsilon=1.0 chooses it; leave one of them out": together(
        "dp_fedavg", target_epsilon=1.0, noise_multiplier=1.0
    ),
    "helper_choice='newest': ...; set prototype_sums='none'": together("protofssl", **NEWEST),
    "stability_rate=0.0: does not go with ...; use a number above 0": together(
        "fedct", **NOISE, sensitivity="stability"
    ),
    "fedct.presence...client 1 leaves at two stages": together(
        "fedct", sums="masked", presence=("1@upload", "1@setup")
    ),
    "fedct.presence...needs sums='masked_resilient'": together(
        "fedct", sums="masked", presence=("1@survivors",)
    ),
}


def trained(name, *, settings=None, **changes):
    own = {"strong_augment": double} if declared(ALGORITHMS[name]).two_views else {}
    if "clients" not in declared(ALGORITHMS[name]).labels_at:
        _, federation = clients_and_server(lambda x: [x[:12], x[12:]])
        own |= {"server_examples": federation.server_examples, "server_batches": WHOLE}

    def call():
        ALGORITHMS[name](training=training_of(WHOLE, **own | changes), **settings or {})

    return call


def sources_of(name):
    task = PrototypeTask(num_classes=3, max_labels=2)
    return trained(name, settings={"task": task, "targets": "xclp"})


HEADLESS = mlp((4,), None, hidden=(5,))
TRAININGS = {
    "LocalTraining.client_optimizer='kept': fedcon trains beside": trained(
        "fedcon", client_optimizer="kept"
    ),
    "LocalTraining.client_optimizer='kept': fedirm trains beside": trained(
        "fedirm", client_optimizer="kept"
    ),
    "LocalTraining.client_optimizer='kept': fedloke trains two models": trained(
        "fedloke", client_optimizer="kept"
    ),
    "pseudo_label='xclp': choose one of": sources_of("protofssl"),
    "model: fedper needs a network of a body and a head": trained("fedper", model=HEADLESS),
    "model: fedproto needs a network of a body and a head": trained("fedproto", model=HEADLESS),
    "model: proxyfl needs ... below its head": trained("proxyfl", model=mlp((4,), 3, hidden=())),
    "participation=Sampling...: use participation(": trained(
        "dp_fedavg", settings={"participation": Sampling(2)}
    ),
    "target_epsilon=1.0: ... give participation": trained(
        "dp_fedavg", settings={"target_epsilon": 1.0}
    ),
    "dp_fedavg: ... running statistics no noise covers": trained("dp_fedavg", batch_norm=True),
    "dp_fedavg_records: ... running statistics no noise": trained(
        "dp_fedavg_records", batch_norm=True
    ),
}


def begun(name, *, federation=FEDERATION, learner=None, rounds=0, **settings):
    learner = learner or toy()
    made = {"learner": learner, "server_learner": learner, "network": lambda **own: learner}
    made |= {"public": federation.public_examples, "num_classes": NUM_CLASSES}
    made["public_labels"] = settings.pop("public_labels", None)

    def call():
        takes = declared(ALGORITHMS[name]).takes
        algorithm = ALGORITHMS[name](**{key: made[key] for key in takes}, **settings)
        state = algorithm.init(KEY, federation)
        for _ in range(rounds):
            algorithm.round(state, federation.cohort(), KEY)

    return call


def with_new_points():
    part = FEDERATION.partition
    new = tuple(own[:1] for own in part.labeled)
    return replace(FEDERATION, partition=part._replace(new=new))


SCORING = toy()._replace(scores=toy().predict_proba)
MUTE = toy(has_probabilities=False)
NONE_PUBLIC = replace(FEDERATION, public=FEDERATION.public[:0])
OTHERS = (FEDERATION.y[FEDERATION.public] + 1) % 3
CLIENTS = {
    "network: has no probabilities": begun("dsfl", learner=MUTE),
    "this method learns from public examples": begun("dsfl", federation=NONE_PUBLIC),
    "this method learns from public examples  also from labels": begun(
        "pate", federation=NONE_PUBLIC
    ),
    "clients that train models need federation.test='central'": begun(
        "pate", federation=with_new_points()
    ),
    "this method needs labels at the clients": begun(
        "pate", federation=replace(FEDERATION, server=FEDERATION.test[:2])
    ),
    "public_labeled=True: the public examples' classes": begun(
        "fedmd", learner=SCORING, public_labels=OTHERS
    ),
    "fedct.presence...client 4: at most 3 of 4 clients": begun(
        "fedct", sums="masked", presence=("4@upload",), rounds=1
    ),
}

test_values = refusals.table({line: given(line) for line in VALUES.strip().splitlines()})
test_together = refusals.table(TOGETHER)
test_trainings = refusals.table(TRAININGS)
test_clients = refusals.table(CLIENTS)
