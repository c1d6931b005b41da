"""Settings chosen over folds of the labels: folds, counts, ties, and the loop written out by hand."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

from jaxfed.algorithms import ALGORITHMS
from jaxfed.config import check, file
from jaxfed.config.assembly import make_algorithm
from jaxfed.config.data.simulation import Simulation
from jaxfed.config.methods import settings_to_try
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.execution import Execution
from jaxfed.kernels import knn
from jaxfed.random_streams import Stream
from jaxfed.xclp.one_shot.cross_validation import cross_validated, folds, recovered
from jaxfed.xclp.one_shot.transduction import transductive

KEY = jax.random.key(3)
PROPAGATING = ("xclp", "per_client_lp", "pooled_lp")
DIGITS = "ml_collections_configs/xclp_digits.py:tuned"


def cohort_of(labels, client_id=None):
    """Clients with these labels, -1 = unlabeled; x is the number of the point."""
    sizes = [len(y) for y in labels]
    y = np.full((len(labels), max(sizes)), -1, np.int32)
    for row, own in zip(y, labels, strict=True):
        row[: len(own)] = own
    mask = np.arange(y.shape[1]) < np.array(sizes)[:, None]
    x = np.arange(y.size, dtype=np.float32).reshape(*y.shape, 1)
    ids = np.arange(len(labels)) if client_id is None else np.array(client_id)
    return Cohort(ids.astype(np.int32), x, y, mask)


# ------------------------------------------------------------------ folds


def test_folds_are_even_by_client_and_by_class():
    rng = np.random.default_rng(0)
    cohort = cohort_of([rng.integers(-1, 4, size) for size in (40, 3, 0, 91)])
    fold = folds(cohort, 5, 7)
    assert fold.dtype == np.int32
    np.testing.assert_array_equal(fold >= 0, cohort.y >= 0)
    for own, y in zip(fold, cohort.y, strict=True):
        for chosen in (y >= 0, *(y == c for c in range(4))):
            sizes = np.bincount(own[chosen], minlength=5)
            assert np.ptp(sizes) <= 1


def test_folds_are_a_clients_own_and_random():
    labels = [np.tile(np.arange(3), 10)] * 3
    fold = folds(cohort_of(labels), 5, 7)
    assert not np.array_equal(fold[0], fold[1])
    assert not np.array_equal(fold, folds(cohort_of(labels), 5, 8))
    # In another order, and among others, a client deals as before.
    np.testing.assert_array_equal(folds(cohort_of(labels[:2], [2, 0]), 5, 7), fold[[2, 0]])
    # Its few labels are not always in the first fold.
    single = folds(cohort_of([[0]] * 50), 5, 7)[:, 0]
    assert set(single) == set(range(5))


# ------------------------------------------------------------------ counts and choice


def test_classes_are_hidden_together_as_chance_has_it():
    """Ten labels of ten classes in five folds: any two are together once in nine."""
    cohort = cohort_of([list(range(10))] * 4)
    fold = np.concatenate([folds(cohort, 5, seed) for seed in range(250)])
    together = (fold[:, :, None] == fold[:, None, :]).mean(axis=0)[~np.eye(10, dtype=bool)]
    np.testing.assert_allclose(together, 1 / 9, atol=4.5 * np.sqrt(8 / 81 / len(fold)))


def majority(shift, seen):
    """Labels every point with the cohort's most frequent label, plus `shift`."""

    def label_points(cohort, key):
        seen.append(np.array(cohort.y))
        most = np.bincount(cohort.y[cohort.y >= 0]).argmax() + shift
        return np.full(cohort.y.shape, most), np.ones(cohort.y.shape), {"shift": shift}

    return transductive(label_points)


def state_for(method, cohort):
    return method.init(KEY, SimpleNamespace(num_clients=9, capacity=cohort.y.shape[1], server=()))


LABELS = [[2, 2, 0, 2, -1, 1], [2, -1, 1, 2, 2, 0]]  # 0 and 1 twice, 2 six times


def test_hidden_labels_are_counted_by_class_and_hidden_for_all():
    seen, cohort = [], cohort_of(LABELS, [4, 8])
    fold = folds(cohort, 3, 0)
    method = majority(0, seen)
    hits = recovered(method, state_for(method, cohort), cohort, fold, KEY)
    np.testing.assert_array_equal(hits, [0, 0, 6])
    assert len(seen) == 3
    for number, y in enumerate(seen):
        np.testing.assert_array_equal(y, np.where(fold == number, -1, cohort.y))


def chosen(shifts, cohort, measure="accuracy"):
    seen = []
    method = cross_validated(
        lambda settings, execution: majority(settings["shift"], seen),
        [{"shift": shift} for shift in shifts],
        num_folds=3,
        measure=measure,
    )
    state, metrics = method.round(state_for(method, cohort), cohort, KEY)
    return state, metrics, seen


def test_the_settings_with_most_hits_label_at_last_with_all_labels():
    cohort = cohort_of(LABELS, [4, 8])
    state, metrics, seen = chosen([1, 0, -1], cohort)
    assert metrics["selected"] == {"shift": 0}
    assert metrics["cross_validation"] == {"accuracy": 0.6, "given_accuracy": 0.0}
    assert metrics["shift"] == 0
    assert len(seen) == 3 * 3 + 1
    np.testing.assert_array_equal(seen[-1], cohort.y)
    assert (state.label[[4, 8]][cohort.mask] == 2).all()


def test_padding_has_no_label_and_no_confidence():
    cohort, method = cohort_of([[0, 0, 1], [0]]), majority(0, [])
    state, _ = method.round(state_for(method, cohort), cohort, KEY)
    np.testing.assert_array_equal(state.label[:2], [[0, 0, 0], [0, -1, -1]])
    np.testing.assert_array_equal(state.confidence[:2], [[1, 1, 1], [1, 0, 0]])


def test_folds_are_drawn_from_a_stream_of_their_own():
    cohort = cohort_of(LABELS, [4, 8])
    *_, seen = chosen([0], cohort)
    fold = folds(cohort, 3, int(jax.random.bits(jax.random.fold_in(KEY, Stream.FOLDS))))
    for number, y in enumerate(seen[:-1]):
        np.testing.assert_array_equal(y, np.where(fold == number, -1, cohort.y))


@pytest.mark.parametrize(("shifts", "first"), [([-1, -2], -1), ([-2, -1], -2), ([1, 5], 1)])
def test_of_equals_the_first_is_taken(shifts, first):
    _, metrics, _ = chosen(shifts, cohort_of(LABELS))
    assert metrics["selected"] == {"shift": first}


def test_balanced_accuracy_counts_classes_alike():
    _, metrics, _ = chosen([0], cohort_of(LABELS), "balanced_accuracy")
    assert metrics["cross_validation"]["accuracy"] == pytest.approx(1 / 3)


def test_without_labels_the_given_settings_are_taken():
    method = cross_validated(
        lambda settings, execution: ALGORITHMS["client_knn"](num_classes=3, **settings),
        [{"num_neighbors": 5}, {"num_neighbors": 1}],
    )
    cohort = cohort_of([[-1, -1]])
    _, metrics = method.round(state_for(method, cohort), cohort, KEY)
    assert metrics["selected"] == {"num_neighbors": 5}
    assert metrics["cross_validation"] == {"accuracy": None, "given_accuracy": None}


# ------------------------------------------------------------------ from a config


def small(name, *overrides):
    config = file.load(
        DIGITS,
        (
            *("dataset.train_size=200", "federation.num_clients=3", "xclp.num_bits=256"),
            *("federation.labeled_fraction=0.3", f"algorithm={name}"),
            *("baselines=", *overrides),
        ),
    )
    check.check(config)
    return config


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        (
            "xclp",
            ["selection.candidates.xclp.num_bits=(32,)", "selection.candidates.xclp.alpha=(0.3,)"],
        ),
        ("per_client_lp", []),
        ("pooled_lp", ["selection.candidates.pooled_lp.num_neighbors=(3,)"]),
        ("client_knn", []),
    ],
)
@pytest.mark.sample(2)
def test_it_is_the_loop_over_settings_and_folds(name, overrides):
    """Nothing is remembered here, and codes, neighbors and graphs are made anew every time."""
    alphas = [f"selection.candidates.{other}.alpha=0.3,0.9" for other in PROPAGATING]
    config = small(name, *alphas, *overrides)
    federation = Simulation(config).federation(0)
    cohort = federation.cohort()
    method = make_algorithm(config, name, federation)
    start = method.init(KEY, federation)
    found, metrics = method.round(start, cohort, KEY)

    seed = int(jax.random.bits(jax.random.fold_in(KEY, Stream.FOLDS)))
    fold = folds(cohort, 5, seed)
    factory, section = ALGORITHMS[name], config[name].to_dict()
    candidates = settings_to_try(config, name)
    assert candidates[0].items() <= section.items()
    plain = [factory(num_classes=10, **{**section, **settings}) for settings in candidates]
    hits = []
    for one in plain:
        count = 0
        for number in range(5):
            visible = cohort._replace(y=np.where(fold == number, -1, cohort.y))
            label = one.round(start, visible, KEY)[0].label
            count += int(np.sum(label[fold == number] == cohort.y[fold == number]))
        hits.append(count)
    best = int(np.argmax(hits))
    assert metrics["selected"] == candidates[best]
    total = np.sum(cohort.y >= 0)
    assert metrics["cross_validation"]["accuracy"] == pytest.approx(hits[best] / total)
    assert metrics["cross_validation"]["given_accuracy"] == pytest.approx(hits[0] / total)
    np.testing.assert_array_equal(found.label, plain[best].round(start, cohort, KEY)[0].label)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("name", "search", "times"),
    [
        ("xclp", "hamming_knn", 1),
        ("per_client_lp", "cosine_knn", 3),
        ("pooled_lp", "cosine_knn", 1),
    ],
)
def test_neighbors_are_searched_once(name, search, times, monkeypatch):
    searches = []
    exact = getattr(knn, search)

    def counted(*arguments, **keywords):
        searches.append(1)
        return exact(*arguments, **keywords)

    monkeypatch.setattr(knn, search, counted)
    config = small(name, f"selection.candidates.{name}.alpha=0.3,0.9")
    federation = Simulation(config).federation(0)
    method = make_algorithm(config, name, federation)
    start = method.init(KEY, federation)
    method.round(start, federation.cohort(), KEY)
    assert len(searches) == times
    method.round(start, federation.cohort(), KEY)
    assert len(searches) == 2 * times, "what a round remembers goes with it"


def test_progress_is_told():
    told = []
    method = cross_validated(
        lambda settings, execution: majority(settings["shift"], []),
        [{"shift": 0}, {"shift": 1}],
        num_folds=3,
        execution=Execution(progress=lambda what, done, total: told.append((done, total))),
    )
    cohort = cohort_of(LABELS)
    method.round(state_for(method, cohort), cohort, KEY)
    assert told == [(1, 2), (2, 2)]


def test_tuned_is_a_variant_of_every_config():
    for name in ("xclp_digits", "xclp_fashion_mnist", "femnist", "fed_isic2019"):
        config = file.load(f"ml_collections_configs/{name}.py:tuned")
        check.check(config)
        assert config.selection.settings == "cross_validated"
        assert len(settings_to_try(config, "xclp")) > 1
    assert small("xclp").selection.candidates.per_client_lp.alpha[-1] == 0.99


def test_auto_is_a_variant_of_every_config():
    names = ("xclp_digits", "xclp_fashion_mnist", "xclp_cifar10", "femnist", "fed_isic2019")
    for name in (*names, "fedavg_xclp"):
        config = file.load(f"ml_collections_configs/{name}.py:auto")
        check.check(config)
        for section in (config.xclp, config.per_client_lp, config.pooled_lp):
            assert section.select[0::2] == ("alpha", "client_prior")
            assert (section.label_matrix, section.alpha) == ("class_balanced", 0.95)


def test_what_leave_one_out_chooses_is_not_cross_validated():
    config = small("xclp")
    config.xclp.select = ("alpha:0.5", "client_prior")
    config.selection.candidates.xclp.num_neighbors = (3,)
    candidates = settings_to_try(config, "xclp")
    assert all(settings.keys() == {"num_neighbors"} for settings in candidates)
    federation = Simulation(config).federation(0)
    method = make_algorithm(config, "xclp", federation)
    _, metrics = method.round(method.init(KEY, federation), federation.cohort(), KEY)
    prior = {"client_prior", "client_prior_labels"}
    assert metrics["selected"].keys() == {"alpha", "num_neighbors"} | prior
