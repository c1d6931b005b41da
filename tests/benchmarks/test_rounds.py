"""Contests of rounds: contestants agree, at every place and with unequal clients."""

import jax
import numpy as np
import pytest

from benchmarks.rounds import learners, on_disk, population, scaling
from benchmarks.timing.contest import run_contest
from jaxfed.algorithms import ALGORITHMS


@pytest.mark.slow
def test_forests_in_processes_stand_beside_the_same_ones_in_turn(short, monkeypatch):
    small = {"PUBLIC": 40, "EXAMPLES": 20, "STEPS": 2, "BATCH": 8}
    for name, size in {**small, "ROWS": 20, "TAUGHT": 40, "TREES": 2}.items():
        monkeypatch.setattr(learners, name, size)
    monkeypatch.setattr(learners, "optional_peer", lambda name, *_: {name: None})
    monkeypatch.setattr(learners, "num_cores", lambda: 2)
    networks, forests = learners.learners(with_peers=True)
    assert networks.targets == {"PyTorch loop": 1.5}
    assert forests.targets == {"one after another": 1.6}
    assert forests.case["processes"] == 2
    with jax.numpy_dtype_promotion("standard"):  # of Adam, which raises floats to integers
        trained = networks.ours()
    assert trained["head.kernel"].shape == (5, 512, 10)
    assert networks.agreement(trained, trained).startswith("losses ")
    with jax.numpy_dtype_promotion("standard"):
        np.testing.assert_array_equal(networks.ours()["head.bias"], trained["head.bias"])
    row = run_contest(forests, {})
    assert row["agreement"] == {"one after another": "the same votes"}


@pytest.mark.slow
def test_rounds_are_the_same_at_every_place_of_scaling(monkeypatch):
    monkeypatch.setattr(scaling, "EXAMPLES", 3)
    monkeypatch.setattr(scaling, "SAMPLES", 1)
    layouts = {name: scaling.Layout(name) for name in (scaling.TWO, scaling.ONE, scaling.PROCESSES)}
    try:
        row = run_contest(scaling.cohort_contest(layouts, 3), {})
    finally:
        for layout in layouts.values():
            layout.close()
    assert row["agreement"].keys() == row["peers"].keys() == {scaling.ONE, scaling.PROCESSES}
    per_example = row["figures"]["us a client-example"]["measured"]
    assert per_example == pytest.approx(1e6 * row["median_seconds"]["jaxfed"] / 9)


def test_clients_of_a_population_are_views_on_few_examples():
    federation = population.federation_of(30_000)
    assert len(federation.y) == population.EXAMPLES + population.PUBLIC
    assert federation.partition.labeled[0].base is federation.partition.unlabeled[-1].base
    cohort = federation.cohort([0, 999, 1_000])
    assert cohort.x.shape[:2] == (3, 5)
    assert (cohort.y >= 0).sum(axis=1).tolist() == [2, 2, 2]
    np.testing.assert_array_equal(cohort.x[0], cohort.x[2])  # 5,000 examples later
    assert set(population.METHODS) < set(ALGORITHMS)


def test_a_round_of_clients_on_disk(short, monkeypatch):
    monkeypatch.setattr(on_disk, "COHORT", 4)
    monkeypatch.setattr(on_disk, "POPULATIONS", (10,))
    (contest,) = on_disk.on_disk(with_peers=False)
    after, later = contest.ours(), contest.ours()
    assert not np.array_equal(after["head.kernel"], later["head.kernel"])  # the next round's
    for _ in range(20):
        after = contest.ours()
    worse = {name: np.zeros_like(value) for name, value in after.items()}
    with jax.numpy_rank_promotion("allow"):  # of the peers' network
        assert contest.agreement(after, after)
        with pytest.raises(AssertionError, match="accuracies"):
            contest.agreement(after, worse)
