"""What every method must hold, run over ALGORITHMS: a new one is checked here without an edit."""

import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from on_demand import on_demand

from jaxfed.algorithms import ALGORITHMS, declaration_of
from jaxfed.api.run import run
from jaxfed.config import assembly
from jaxfed.config.data.simulation import Simulation
from jaxfed.config.methods import needs
from jaxfed.data import Partition
from jaxfed.errors import UsageError
from jaxfed.experiment.run.simulate import simulate
from jaxfed.federation.algorithm import attribute_of, on_network
from jaxfed.federation.execution import is_one_cpu
from jaxfed.federation.rounds import needs_labels_in
from jaxfed.testing import MethodChecks
from jaxfed.testing.method_checks import (
    SEED,
    arranged,
    assert_equal,
    has_learners,
    is_one_shot,
    played,
    started,
    trains,
)
from jaxfed.training import aggregate, specification
from jaxfed.training.local.augmentation import compose
from jaxfed.training.local.losses import POINTWISE
from jaxfed.training.specification import UNREAD_BY_LEARNERS, Training

ESTIMATORS = "learner.name=random_forest"
TWO_VIEWS = ("training.strong_augmentation=('translate:1',)",)
SGD = ("training.optimizer=sgd", "training.learning_rate=0.3")
SETTINGS = {  # of methods that need other data, or fewer steps
    "fedcon": ("federation.labels_at=server",),
    # Rounds with given labels alone are semifl's and fixmatch's too, by the same code.
    "fl2": ("federation.labels_at=server", "training.labeled_only_rounds=0"),
    "semifl": ("federation.labels_at=server", *TWO_VIEWS, "rounds=6"),
    "fixmatch": (*TWO_VIEWS, "rounds=6"),
    "sage": ("training.labeled_only_rounds=0",),
    "protofssl": ("rounds=6",),
    # Shared test rows: with others a public label lies on the edge, and rounding decides it.
    "fedct": (*SGD, "fedct.steps=10", "dataset.test_rows=shared"),
    "distributed_distillation": ("distributed_distillation.steps=10",),
    **dict.fromkeys(("local_learning", "centralized", "pate"), (ESTIMATORS,)),
    # Eight clients are few to hide among: noise that can be learned through promises next to nothing.
    "dp_fedavg": ("dp_fedavg.noise_multiplier=0.02", "dp_fedavg.clip=2.0"),
    "dp_fedavg_records": ("dp_fedavg_records.clip=2.0",),
    # At 0.1 a confidence lies on a threshold, and rounding decides it.
    "twinsight": ("training.learning_rate=0.05",),
    "dsfl": ("dsfl.steps=20", "dsfl.distill_steps=10"),
    "fedmd": (
        *(*SGD, "rounds=6", "federation.public_labeled=true", "fedmd.transfer_steps=20"),
        *("fedmd.private_steps=20", "fedmd.digest_steps=5", "fedmd.revisit_steps=10"),
    ),
}

# What else a method is tried with: networks, where it stands above with estimators.
CASES = {name: (name, SETTINGS.get(name, ())) for name in ALGORITHMS} | {
    "local_learning_networks": ("local_learning", ("local_learning.steps=10",)),
    "centralized_networks": ("centralized", ("centralized.steps=10",)),
    "pate_networks": ("pate", ("pate.steps=10", "pate.student_steps=10", "pate.teacher_rounds=6")),
}

STRATEGIES = "test_strategies_agree_and_padding_is_inert"
# How clients are executed is no matter of a method; of each kind one is tried with every commit.
EXECUTED_TWICE = ("scaffold", "fedct")
# Methods whose equations have tests of their own are checked on demand; a new one with every commit.
ON_DEMAND = (
    *("fedavg_xclp_prototypes", "fedavg_per_client_lp", "fedavg_network", "fedsem", "fedprox"),
    *("dp_fedavg_records", "fedrep", "fedproto", "fedtgp", "sage_xclp", "fedlabel", "feddb"),
    *("feddure", "twinsight", "rscfed", "cbafed", "proxyfl", "fedloke", "fedirm", "mixmatch"),
    *("fl2", "fedmatch", "fedsiam", "fedrgd", "fedcon", "distributed_distillation", "dsfl"),
    *("local_learning_networks", "centralized_networks", "pate_networks", "fedbuff"),
    # Their own tests check the same of small rounds (`small_round_checks`).
    *("protofssl", "semifl", "feddyn", "fedper", "dp_fedavg", "fixmatch", "sage"),
    "fedmd",  # fedct has the same learners
    "centralized",  # local_learning has the same estimators
    "per_client_lp",  # xclp is as much of one shot
    *("fedncm", "fedcof"),  # fed3r has the same file of sums
)


# Invariances that cost a compilation each: with every commit of these, of all others on demand.
INVARIANT_AT_ONCE = ("xclp", "fedavg")
INVARIANT = {
    "test_odd_clients_take_part": (),
    # Noise, or steps of the server's own, move the model too.
    "test_nothing_is_learned_at_a_learning_rate_of_nearly_0": ("dp_fedavg", "proxyfl"),
    # Noise and draws go class by class, and of equal votes the first class wins.
    "test_renamed_classes_have_their_predictions": (
        *("dp_fedavg", "dp_fedavg_records", "fedct", "fedtgp", "pate"),
    ),
}


def also_slow(check):
    """The check of `MethodChecks`, on demand."""

    def checked(self):
        getattr(MethodChecks, check)(self)

    return pytest.mark.slow(checked)


for case, (name, settings) in CASES.items():
    own = {"method": name, "settings": settings}
    if name not in EXECUTED_TWICE:
        own[STRATEGIES] = also_slow(STRATEGIES)
    for check, exempt in INVARIANT.items():
        if name in exempt or name not in INVARIANT_AT_ONCE:
            own[check] = None if name in exempt else also_slow(check)
    if case == "pate_networks":  # its student begins in the sixth round
        own["test_rounds_are_compiled_once"] = None
    checks = type(f"Test_{case}", (MethodChecks,), own)
    globals()[checks.__name__] = pytest.mark.slow(checks) if case in ON_DEMAND else checks
del checks  # or it is collected once more


TRAIN = list(filter(trains, ALGORITHMS))
ONE_SHOT = list(filter(is_one_shot, ALGORITHMS))
LEARN = [case for case, (name, _) in CASES.items() if trains(name)]
NETWORKS = [case for case in LEARN if ESTIMATORS not in CASES[case][1]]


def rolled(key, x):
    """A user's own augmentation, which returns what it is given: bytes of bytes."""
    return jnp.roll(x, jax.random.randint(key, (), 0, 3), axis=1)


def flipped(key, x):
    return jnp.where(jax.random.bernoulli(key, 0.5, (len(x), 1, 1, 1)), x[:, ::-1], x)


def as_bytes(x):
    return np.rint(x * 255).astype(np.uint8)


def as_shares(x):
    return as_bytes(x) / np.float32(255)


FIELDS = ("augment", "strong_augment", "pointwise", "weighting", "aggregate")


def watched(monkeypatch):
    """The fields of a training that are read from now on, also by methods that declare not to."""
    read = set()

    def watch(field, function):
        def called(*values):
            read.add(field)
            return function(*values)

        return called

    def server_optimizer(optimizer, made=assembly.server_optimizer):
        plain = made(optimizer)
        return plain._replace(apply=watch("aggregate", plain.apply))

    own = {
        "augmentation": watch("augment", rolled),
        "strong_augmentation": watch("strong_augment", flipped),
    }
    monkeypatch.setattr(assembly, "change_of", lambda config, key: own[key])
    for field, named in (("pointwise", POINTWISE), ("weighting", aggregate.WEIGHTINGS)):
        for name in named:
            monkeypatch.setitem(named, name, watch(field, named[name]))
    monkeypatch.setattr(assembly, "server_optimizer", server_optimizer)
    by_examples = watch("weighting", aggregate.by_examples)
    monkeypatch.setattr(specification, "by_examples", by_examples)
    monkeypatch.setattr(Training, "read_by", lambda training, *unread: training)
    return read


@pytest.mark.parametrize("name", on_demand(ONE_SHOT, at_once=("fed3r",)))
def test_bytes_are_shares_of_1_in_one_shot(name):
    config, federation, _ = arranged(name)
    labels = []
    for kind in (as_bytes, as_shares):
        seen = replace(federation, x=kind(federation.x / np.abs(federation.x).max()))
        algorithm = assembly.make_algorithm(config, name, seen)
        state = played(algorithm, config, seen, started(algorithm, seen), 1, 1)
        labels.append(algorithm.evaluate.predictions(state, seen).label)
    assert np.mean(labels[0] == labels[1]) > 0.98


# Rounds of one need a clock; the other labels by features that a run trains first.
NOT_AS_ARRANGED = ("fedbuff", "network")
PLAYED = [case for case in CASES if case not in NOT_AS_ARRANGED]


@pytest.mark.parametrize("case", on_demand(PLAYED, at_once=("fed3r",)))
def test_simulate_gives_the_numbers_of_a_run(case):
    name, settings = CASES[case]
    config = arranged(name, settings=settings)[0].copy_and_resolve_references()
    with config.unlocked():
        config.algorithm, config.baselines, config.num_repeats = name, (), 1
        config.rounds = min(config.rounds, 6 if name == "pate" else 3)  # teachers vote in the sixth
        config.evaluate_every = 1
        config.execution.plots = False
    result = run(config, progress=False)
    federation = Simulation(config).federation(config.seed)
    simulated = simulate(
        assembly.make_algorithm(config, name, federation),
        federation,
        rounds=config.rounds,
        cohort_size=config.cohort_size,
        sampling=config.sampling,
        seed=config.seed,
        evaluate_every=config.evaluate_every,
    )
    final = result.summary["algorithms"][name]
    assert simulated.metrics["test_accuracy"] == final["test_accuracy"]["values"][0]
    assert simulated.predictions().label.tolist() == list(result.predictions(name)["label"])


SEEN = ("training.labeled_only_rounds=0", "dataset.train_size=300", "federation.num_labeled=80")


@pytest.mark.parametrize("case", on_demand(NETWORKS, at_once=("fedct", "fedavg_network")))
def test_bytes_are_shares_of_1_whatever_an_augmentation_returns(case, monkeypatch):
    """A method that trained on views of 0..255, or mixed them with others, would have another model.

    It reads what it declares to read, and no more.
    """
    read = watched(monkeypatch)
    name, settings = CASES[case]
    config, federation, _ = arranged(name, settings=(*settings, *SEEN))
    states = []
    for kind in (as_bytes, as_shares):
        seen = replace(federation, x=kind(federation.x))
        algorithm = assembly.make_algorithm(config, name, seen)
        states.append(played(algorithm, config, seen, started(algorithm, seen), 1, 1))
    assert_equal(*states, rtol=1e-3, atol=1e-4)
    unread = UNREAD_BY_LEARNERS if has_learners(name) else needs(config, name).unread
    if name in ("fedproto", "fedtgp"):  # the server's step is taken, from changes of 0
        read -= {"aggregate"}
    assert read == {*FIELDS} - {*unread}


@pytest.mark.parametrize("case", NETWORKS)
@pytest.mark.sample(8)
def test_augmentations_by_levels_refuse_other_levels(case, monkeypatch):
    """As a library's user has them, whose examples no config has checked."""
    name, settings = CASES[case]
    config, federation, _ = arranged(name, settings=(*settings, *SEEN))
    unread = UNREAD_BY_LEARNERS if has_learners(name) else needs(config, name).unread
    for key, augment in (("augmentation", "randaugment"), ("strong_augmentation", "cutout:3")):
        if key.removesuffix("ation") in unread:
            continue
        own = {"strong_augmentation": compose(("flip",)), key: compose(("flip", augment))}
        monkeypatch.setattr(assembly, "change_of", lambda config, key, own=own: own.get(key))
        algorithm = assembly.make_algorithm(config, name, federation)
        started(algorithm, federation)
        other = f"augmentation='{augment}': needs pixels from|use one scale for all"
        for scaled in (16, -1):
            with pytest.raises(UsageError, match=other):
                started(algorithm, replace(federation, x=scaled * federation.x))


@pytest.mark.slow  # training/round/test_round spreads smaller rounds
@pytest.mark.parametrize("name", TRAIN)
def test_clients_spread_over_devices_agree(name):
    checks = MethodChecks()
    checks.method, checks.settings = name, SETTINGS.get(name, ())
    checks.agrees_with("shard_map")


@pytest.mark.slow
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


# Methods whose guarantee is of noise on the mean of a whole cohort: a client without work counts, too.
COUNT_EVERYBODY = ("dp_fedavg", "dp_fedavg_records")


# Clients without examples learn from public targets, and then answer like others.
LEARN_FROM_PUBLIC = ("fedct", "distributed_distillation", "fedmd", "dsfl")
COUNT_WHO_TRAINS = [case for case in CASES if case not in LEARN_FROM_PUBLIC]


@pytest.mark.parametrize("case", on_demand(COUNT_WHO_TRAINS, at_once=("feddyn",)))
def test_clients_without_anything_to_train_on_are_inert(case):
    """Nine more in every cohort change no prediction; with a method of given labels some have examples."""
    name, settings = CASES[case]
    if name in COUNT_EVERYBODY:
        settings += ("cohort_size=0",)  # a guarantee for drawn cohorts counts clients, too
    config, federation, algorithm = arranged(name, settings=settings)
    last = min(config.rounds, config.training.labeled_only_rounds + 2)
    nothing = (np.zeros(0, np.int64),) * 9
    own = nothing
    if needs_labels_in(algorithm, last):
        own = (*nothing[:5], *np.split(federation.validation[:4], 4))
    part = federation.partition
    with_nobody = federation.with_partition(
        Partition((*part.labeled, *nothing), (*part.unlabeled, *own), (*part.new, *nothing))
    )
    states, key = [], jax.random.key(SEED)
    for clients, extra in ((federation, 0), (with_nobody, 0 if name in COUNT_EVERYBODY else 9)):
        state = started(algorithm, clients)
        for number in range(1, last + 1):
            cohort = clients.cohort([*range(8), *range(8, 8 + extra)])
            state, _ = algorithm.round(state, cohort, jax.random.fold_in(key, number))
        states.append(state)
    if algorithm.predict is not None:
        x = federation.x[federation.test]
        found = [algorithm.predict(state, x) for state in states]
    else:
        predictions = attribute_of(algorithm.evaluate, "predictions")
        found = [predictions(state, federation).confidence for state in states]
    np.testing.assert_allclose(*found, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("case", on_demand(CASES, at_once=("xclp", "fedavg", "fedct", "fedper")))
def test_it_runs_on_a_network_as_declared(case):
    name, settings = CASES[case]
    algorithm = arranged(name, settings=settings)[2]
    assert (on_network(algorithm) is not None) == declaration_of(name).on_network
