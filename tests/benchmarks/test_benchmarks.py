"""What a contest reports: ratios to peers, parts scaled up, figures beside what is promised."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from benchmarks.kernels import peak_memory
from benchmarks.methods import labeling_cost, start
from benchmarks.protocols import row_sums, secure_hamming
from benchmarks.rounds import learners, scaling, shadow_models
from benchmarks.timing import contest
from benchmarks.timing.contest import Contest, run_contest
from launch.bench import as_line

UNITS = ("us a pair", "bytes a pair")


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(contest, "SHORTEST_SAMPLE", 0.001)
    monkeypatch.setattr(contest, "REST", 0)


def seconds(duration, result=None):
    def solve():
        time.sleep(duration)
        return result

    return solve


def test_a_peer_that_solves_a_part_is_scaled_up_and_figures_stand_beside_promises(short):
    row = run_contest(
        Contest(
            task="waiting",
            case={"n": 8},
            ours=seconds(0.02, 40),
            peers={"whole": seconds(0.04), "quarter": seconds(0.02)},
            parts={"quarter": 1 / 4},
            targets={"quarter": 3},
            figures=lambda result, took: {
                "ms a point": 1e3 * took / 8,
                "bytes a point": result / 8,
            },
            at_most={"bytes a point": 5.5},
        ),
        5,
        {},
    )
    whole, quarter = row["peers"]["whole"], row["peers"]["quarter"]
    assert whole["ratio"] == pytest.approx(2, rel=0.3)
    assert quarter["ratio"] == pytest.approx(4, rel=0.3)
    assert (whole["scaled_from_part"], quarter["scaled_from_part"]) == (None, 1 / 4)
    assert row["figures"]["bytes a point"] == {"measured": 5, "at_most": 5.5}
    assert row["figures"]["ms a point"]["measured"] == pytest.approx(2.5, rel=0.3)
    assert row["figures"]["ms a point"]["at_most"] is None
    line = as_line(row)
    assert "5 bytes a point (at most 5.5)" in line
    assert "scaled up from 0.25 of the task" in line
    assert "(target 3)" in line


def test_without_its_packages_phe_is_left_out_with_a_line(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "phe", None)
    monkeypatch.setitem(sys.modules, "phe.paillier", None)
    for module in [name for name in sys.modules if "paillier" in name and "phe" not in name]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(secure_hamming, "_CASES", {})
    tasks = [drawn.task for drawn in secure_hamming.distances(with_peers=False)]
    assert tasks == ["base oblivious transfers"]
    said = capsys.readouterr().err
    assert said.startswith("bench: phe left out, phe")
    assert said.count("\n") == 1


@pytest.mark.slow
def test_xclp_costs_stand_beside_per_client_lps_and_the_papers(short, monkeypatch):
    monkeypatch.setattr(labeling_cost, "CASES", ((3, 20), (2, 40)))
    monkeypatch.setattr(labeling_cost, "MOST_MASKED", 60)
    contests = list(labeling_cost.labeling_cost(with_peers=False))
    tasks = [drawn.task for drawn in contests]
    stages = ["codes (clients)", "Hamming kNN", "graph (server)", "conjugate gradient (server)"]
    plain = [f"XCLP, {name}" for name in ("plaintext", *stages)]
    assert tasks == [*plain, "XCLP, masked", *plain]
    labels = []
    for drawn in (contests[0], contests[5]):
        assert drawn.case == {"clients": 3, "points": 20, "n": 60, "d": 128}
        labels.append(np.concatenate([own.labels for own in drawn.ours().predictions]))
        row = run_contest(drawn, 5, {})
        figures = {name: figure["measured"] for name, figure in row["figures"].items()}
        assert row["peers"]["per-client LP"]["ratio"] > 0
        assert figures["ms a client"] == pytest.approx(1e3 * row["median_seconds"]["jaxfed"] / 3)
        # 3 clients of 20 points, two of them labeled: codes, 60 x 60 / 2 distances, inverse, products.
        assert figures["operations by the paper"] == pytest.approx(
            60 * 128 * 4096 + 4096 * 1800 + 60**3 + 9 * 10 * 2 * 20
        )
        assert figures["operations of per-client LP by the paper"] == pytest.approx(
            3 * (128 * 200 + 20**3 + 10 * 2 * 20)
        )
        assert figures["L p / d"] == 96
        assert figures["MB up"] > 60 * 512 / 1e6
        assert "operations by the paper" in as_line(row)
    np.testing.assert_array_equal(*labels)
    np.testing.assert_array_equal(contests[0].peers["per-client LP"]().shape, (3, 20))


def test_rounds_of_many_clients_give_everybody_its_sums(short, monkeypatch):
    monkeypatch.setattr(row_sums, "CLIENTS", 6)
    monkeypatch.setattr(row_sums, "TWISTED", 2)
    single, double = list(row_sums.masking(with_peers=True))[-2:]
    assert (single.peers.keys(), double.peers.keys()) == ({"numpy_twister"}, set())
    for drawn in (single, double):
        assert drawn.case == {"n": 6, "classes": 10, "clients": 6}
        sums = drawn.ours()
        expected = np.random.default_rng(0).random((6, 6, 10), np.float32).sum(axis=0)
        np.testing.assert_allclose(np.concatenate([sums[j] for j in range(6)]), expected, rtol=1e-6)
        row = run_contest(drawn, 5, {})
        figure = row["figures"]["us a client and peer"]["measured"]
        assert figure == pytest.approx(1e6 * row["median_seconds"]["jaxfed"] / 30)
        for peer in row["peers"].values():
            assert peer["scaled_from_part"] == 1 / 3


@pytest.mark.slow
def test_forests_in_processes_stand_beside_the_same_ones_in_turn(short, monkeypatch):
    small = {"PUBLIC": 40, "EXAMPLES": 20, "STEPS": 2, "BATCH": 8}
    for name, size in {**small, "ROWS": 20, "TAUGHT": 40, "TREES": 2}.items():
        monkeypatch.setattr(learners, name, size)
    monkeypatch.setattr(learners, "optional_peer", lambda name, *_: {name: None})
    monkeypatch.setattr(learners.os, "sched_getaffinity", lambda process: {0, 1}, raising=False)
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
    row = run_contest(forests, 5, {})
    assert row["agreement"] == {"one after another": "the same votes"}


def test_shadow_models_together_are_those_in_turn(short, monkeypatch):
    for name, size in {"SHADOWS": 3, "TARGETS": 20, "HELD_OUT": 20, "STEPS": 2, "BATCH": 8}.items():
        monkeypatch.setattr(shadow_models, name, size)
    (models,) = shadow_models.shadow_models(with_peers=False)
    with jax.numpy_dtype_promotion("standard"):  # of Adam, as above
        together, in_turn = models.ours(), models.peers["one after another"]()
        assert models.agreement(together, in_turn) == "the same bits"
    assert together["head.kernel"].shape == (3, 512, 10)


def three_digits(number):
    return f"{float(format(number, '.3g')):,g}"


def cost_row(contest):
    """A protocol's row of the README's table."""
    case, figures = contest["case"], contest["figures"]
    name = contest["task"].removeprefix("secure Hamming, ")
    points = f"{case['n']:,} × {case['m']:,}"
    costs = [three_digits(figures[unit]["measured"]) for unit in UNITS]
    peers = [f"`{peer}` {three_digits(told['ratio'])}" for peer, told in contest["peers"].items()]
    return f"| `{name}` | {points} | {' | '.join(costs)} | {', '.join(peers)} |"


def test_the_readme_shows_protocols_costs_as_they_were_measured():
    report = json.loads(Path("results/bench_secure_one_core.json").read_text())
    readme = Path("README.md").read_text()
    assert report["environment"]["command"] in readme
    rows = [
        cost_row(contest)
        for contest in report["contests"]
        if contest.get("figures", {}).keys() >= set(UNITS) and contest["case"]["num_bits"] == 4096
    ]
    assert len(rows) == 4
    for row in rows:
        assert row in readme


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="counted by Linux alone")
def test_processes_of_a_contestants_own_are_not_others():
    """A worker that lives on: what has ended the system counts by itself."""
    spin = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ninput()"
    before = contest._own_ticks()
    with subprocess.Popen(
        [sys.executable, "-c", spin], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as worker:
        worker.stdout.readline()
        taken = contest._own_ticks() - before
        worker.communicate(b"\n")
    assert taken >= 0.4 * os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(sys.platform != "linux", reason="of Linux alone")
def test_processes_that_outlive_their_parents_are_not_others():
    """In a process of its own, which adopts them for as long as it lives."""
    spin = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)"
    orphan = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {spin!r}])"
    code = f"""
import subprocess, sys
from benchmarks.timing import contest
contest.adopt_orphans()
before = contest._own_ticks()
with subprocess.Popen([sys.executable, "-c", {orphan!r}], stdout=subprocess.PIPE) as parent:
    assert not parent.wait()
    parent.stdout.read()  # to the end: the orphan's
print(contest._own_ticks() - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) >= 0.4 * os.sysconf("SC_CLK_TCK")


@pytest.mark.slow
@pytest.mark.parametrize(
    "signum", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)]
)
def test_workers_of_scaling_end_with_who_started_them_and_say_nothing(signum):
    """A terminal's Ctrl-C goes to all of the group."""
    code = (
        "from benchmarks.rounds import scaling; place = scaling.Place(scaling.PROCESSES);"
        "place.played(3, 3); print('played', flush=True); place.played(3000, 3)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as parent:
        assert parent.stdout.readline() == "played\n"
        time.sleep(0.5)
        os.killpg(parent.pid, signum)
        said = parent.stderr.read()  # to the end, which is the workers', too
    assert said.count("Traceback") == (signum == signal.SIGINT), said  # the parent's own


@pytest.mark.slow
def test_rounds_are_the_same_at_every_place_of_scaling(monkeypatch):
    monkeypatch.setattr(scaling, "EXAMPLES", 3)
    monkeypatch.setattr(scaling, "SAMPLES", 1)
    places = {name: scaling.Place(name) for name in (scaling.TWO, scaling.ONE, scaling.PROCESSES)}
    try:
        row = run_contest(scaling.cohort_contest(places, 3), 1, {})
    finally:
        for place in places.values():
            place.close()
    assert row["agreement"].keys() == row["peers"].keys() == {scaling.ONE, scaling.PROCESSES}
    per_example = row["figures"]["us a client-example"]["measured"]
    assert per_example == pytest.approx(1e6 * row["median_seconds"]["jaxfed"] / 9)


def test_unequal_clients_beside_equal_ones(short, monkeypatch):
    monkeypatch.setattr(scaling, "SAMPLES", 1)
    monkeypatch.setitem(scaling.UNEQUAL, "fedavg", (30, 300, 5))
    row = run_contest(scaling.unequal_contest("fedavg"), 1, {})
    assert row["peers"].keys() == {scaling.EQUAL, scaling.PADDED}
    assert row["case"] == {"clients": 30, "largest": 300, "others": 5}


@pytest.mark.slow
def test_a_start_is_timed_to_its_workdir_and_to_its_first_result(monkeypatch, tmp_path):
    monkeypatch.setattr(start, "CONFIG", f"{start.CONFIG}:smoke")
    begun = time.perf_counter()
    seconds = start.started(tmp_path)
    assert 0.5 < seconds.workdir < seconds.result < time.perf_counter() - begun
    assert any(tmp_path.iterdir())  # the next start finds its programs


def test_a_start_without_a_result_is_an_error(monkeypatch):
    monkeypatch.setattr(start, "CONFIG", "ml_collections_configs/nobody.py")
    with pytest.raises(RuntimeError, match="status 2"):
        start.started(None)


@pytest.mark.slow
def test_peak_memory_is_of_a_process_of_its_own_and_has_the_search_in_it():
    found = peak_memory.measured(512, 1 << 18, 3)  # 16 MiB of codes, and as much of their tiles
    assert found.peak >= found.before + (1 << 24)
    assert found.before > 0
    assert found.seconds > 0
    assert peak_memory._figures(found, 0.0)["peak GiB"] == found.peak / (1 << 30)
