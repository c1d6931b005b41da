"""One line, status 2, nothing left behind: values that no computation should ever see."""

import pytest
from invoking import DIGITS, invoke

TRAINED = "ml_collections_configs/fedavg_xclp.py:smoke"
PROTOTYPES = "ml_collections_configs/protofssl.py"
SUMS = ["protofssl.prototypes=global", "protofssl.prototype_sums=masked"]
HUGE = 10**20
LONG = "a" * 300  # no file system takes such a name

# config, overrides, what the line says
MISTAKES = {
    "no labels": (DIGITS, ["federation.labeled_fraction=0"], "no client has a label"),
    "no labels but of who is left out": (
        DIGITS,
        ["federation.num_labeled_clients=1", "federation.left_out_client=0"],
        "no client has a label",
    ),
    "nothing to test on": (
        DIGITS,
        ["dataset.test_fraction=1e-9"],
        "config.dataset.test_fraction=1e-09: no example out of 1797",
    ),
    "nothing to validate on": (
        TRAINED,
        ["dataset.validation_fraction=1e-9"],
        "config.dataset.validation_fraction=1e-09: no example",
    ),
    "validation by one class": (
        TRAINED,
        ["dataset.validation_fraction=0.001", "dataset.validation_measure=auroc"],
        "config.dataset.validation_measure='auroc': the validation examples are of one class",
    ),
    "methods that are not tested alike": (
        TRAINED,
        ["baselines=per_client_lp"],
        "config.federation.test='central': 'per_client_lp' labels clients' points, so only",
    ),
    "infinite power": (DIGITS, ["xclp.similarity_power=inf"], "config.xclp.similarity_power=inf"),
    "its follower's": (
        DIGITS,
        ["pooled_lp.similarity_power=inf"],
        "config.pooled_lp.similarity_power=inf",
    ),
    "a section's key": (DIGITS, ["xclp.alpha=2"], "config.xclp.alpha=2.0"),
    "a baseline's key": (DIGITS, ["per_client_lp.alpha=2"], "config.per_client_lp.alpha=2.0"),
    "a key behind training": (TRAINED, ["xclp.alpha=2"], "config.xclp.alpha=2.0"),
    "a keyword's value": (
        TRAINED.replace("smoke", "fedprox,smoke"),
        ["fedprox.pseudo_label=all"],
        "config.fedprox.pseudo_label='all'",
    ),
    "image size of no images": (DIGITS, ["dataset.image_size=8"], "config.dataset.image_size=8"),
    "label of no columns": (DIGITS, ["dataset.label_key=a"], "config.dataset.label_key='a'"),
    "augmentation below zero": (
        TRAINED,
        ["training.augmentation=cutout:-3"],
        "config.training.augmentation='cutout:-3': cutout takes",
    ),
    "augmentation of a method that has none": (
        DIGITS,
        ["training.strong_augmentation=cutout:-3"],
        "config.training.strong_augmentation",
    ),
    "augmentation too large": (TRAINED, [f"training.augmentation=translate:{HUGE}"], "from 0 to"),
    "augmentation of vectors": (
        TRAINED,
        ["preprocessing.kind=identity", "training.augmentation=flip"],
        "config.training.augmentation=('flip',): changes images",
    ),
    "strong augmentation of vectors, by the second method": (
        TRAINED,
        [
            "preprocessing.kind=identity",
            "baselines=fixmatch",
            "training.strong_augmentation=flip",
        ],
        "shape [64]; for other examples use (), and methods that do not compare two views",
    ),
    "augmentation without a name": (TRAINED, ["training.augmentation=(1,2)"], "use NAME"),
    "baselines in a list": (
        TRAINED.replace("smoke", "scaffold,smoke"),
        ["baselines=([1],)"],
        "config.baselines",
    ),
    "ragged table": (DIGITS, ["federation.table=((1,),(1,2))"], "config.federation.table"),
    "table of text": (DIGITS, ["federation.table=(('a',),)"], "config.federation.table"),
    "table of numbers": (DIGITS, ["federation.table=(1,2)"], "config.federation.table"),
    "table below zero": (DIGITS, ["federation.table=((1,-1),)"], "config.federation.table"),
    "empty row": (DIGITS, ["federation.table=((0,0),)"], "config.federation.table"),
    "weights in a list": (TRAINED, ["training.class_weights=([1],)"], "training.class_weights"),
    **{
        f"{key}={HUGE}": (config, [f"{key}={HUGE}"], f"config.{key}={HUGE}")
        for config, key in (
            (DIGITS, "federation.num_clients"),
            (DIGITS, "xclp.num_neighbors"),
            (DIGITS, "client_knn.num_neighbors"),
            (DIGITS, "num_repeats"),
            (TRAINED, "training.epochs"),
            (TRAINED, "training.local_steps"),
            (TRAINED, "training.unlabeled_ratio"),
        )
    },
    f"hidden={HUGE}": (TRAINED, [f"model.hidden=({HUGE},)"], f"hidden=({HUGE},) the parameters"),
    "no limit of memory": (
        DIGITS,
        ["execution.memory_limit=much"],
        "config.execution.memory_limit='much': use bytes",
    ),
    "a labeling beyond the limit of memory": (
        DIGITS,
        ["execution.memory_limit=10 kB"],
        "config.execution.memory_limit='10 kB': labeling of 1,797 points",
    ),
    "a round beyond the limit of memory": (
        TRAINED,
        ["execution.memory_limit=10000"],
        "config.execution.memory_limit=10000: training in a round takes",
    ),
    "hidden too wide": (
        TRAINED,
        ["model.hidden=(1000000000,)"],
        "the parameters alone would take 301 GB of memory, there are 8 GB",
    ),
    "a data set's name too long": (DIGITS, [f"dataset.name={LONG}"], "config.dataset.name='aaa"),
    "a folder's name too long": (DIGITS, [f"dataset.name=./{LONG}"], "File name too long"),
    "a root's name too long": (
        DIGITS,
        ["dataset.name=cifar10", f"dataset.root={LONG}"],
        "config.dataset.root='aaa",
    ),
    "nobody's data": (
        DIGITS,
        ["dataset.name=~nobody-of-this-name/x.npz"],
        "config.dataset.name='~nobody-of-this-name",
    ),
    "a state's name too long": (
        TRAINED,
        [f"training.initial_model={LONG}"],
        "config.training.initial_model='aaa",
    ),
    "a config's name too long": (LONG, [], "--config='aaa"),
    "a config file's name too long": (f"{LONG}.py:smoke", [], "--config='aaa"),
    "too many clients": (DIGITS, ["federation.num_clients=2000"], "at most 1797"),
    "too many neighbors": (
        DIGITS,
        ["xclp.num_neighbors=1000000000"],
        "config.xclp.num_neighbors=1000000000",
    ),
    "too many bits": (DIGITS, ["xclp.num_bits=2147483616"], "hyperplanes would take 550 GB"),
    "too many epochs": (
        TRAINED,
        ["training.epochs=2000000000"],
        "config.training.epochs=2000000000",
    ),
    "no label left to query": (
        PROTOTYPES,
        ["protofssl.support=3"],
        "config.protofssl.support=3: at most 2: no client has more than 3 labels",
    ),
    "no class with labels enough": (
        PROTOTYPES,
        ["protofssl.min_labels=4"],
        "config.protofssl.min_labels=4: at most 3: no client",
    ),
    "a sum of one": (
        PROTOTYPES,
        [*SUMS, "protofssl.num_helpers=1"],
        "config.protofssl.num_helpers=1: with prototype_sums='masked' a mean is",
    ),
    "sums of one client": (
        PROTOTYPES,
        [*SUMS, "cohort_size=1"],
        "config.cohort_size=1: with config.protofssl.prototype_sums='masked' a round has 2 clients",
    ),
    "more groups than clients": (
        "ml_collections_configs/labels_at_server.py",
        ["cohort_size=3", "fedrgd.num_groups=4"],
        "config.fedrgd.num_groups=4: at most the 3 clients of a round",
    ),
    "no embedding": (PROTOTYPES, ["model.hidden=()"], "model: has no layer before its last one"),
    "an infinite weight": (PROTOTYPES, ["protofssl.mu=inf"], "config.protofssl.mu=inf: use"),
    "too large an episode": (
        PROTOTYPES,
        ["protofssl.unlabeled_query=1000000000"],
        "config.protofssl.unlabeled_query=1000000000: so many examples a step would take 256 GB",
    ),
    **{
        f"variants {variants}": (f"{file}:{variants}", [], "exclude each other")
        for file, variants in (
            ("ml_collections_configs/fedavg_xclp.py", "fedmatch,scaffold"),
            ("ml_collections_configs/fedavg_xclp.py", "labeled_only,fully_supervised"),
            ("ml_collections_configs/fedavg_xclp.py", "alphas,fedmatch"),
            ("ml_collections_configs/fedavg_xclp.py", "fashion_mnist,cifar10_iid_100_1000"),
            (PROTOTYPES, "global,masked_global"),
            (PROTOTYPES, "authors,masked_global"),
            (PROTOTYPES, "fully_supervised,noise"),
            ("ml_collections_configs/xclp_cifar10.py", "graphs,few_labels"),
            ("ml_collections_configs/fed_isic2019.py", "leave_one_out,graphs"),
        )
    },
}


@pytest.mark.sample(24)
@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_one_line_and_leaves_nothing(case, monkeypatch, tmp_path):
    config, overrides, words = MISTAKES[case]
    workdir = tmp_path / "w"
    arguments = [f"--config={config}", f"--workdir={workdir}"]
    arguments += [f"--config.{override}" for override in overrides]
    monkeypatch.setattr("jaxfed.federation.execution.memory.available_bytes", lambda: 8 * 10**9)
    status, complaint = invoke(arguments)
    assert words in complaint
    assert complaint.startswith("jaxfed: ")
    assert complaint.count("\n") == 1
    assert status == 2
    assert not workdir.exists()
