"""Costs of protocols, and the table of them in docs/speed.md."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.protocols import many_clients, row_sums, sparse_sums
from benchmarks.timing.contest import run_contest

UNITS = ("us a pair", "bytes a pair")


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
        row = run_contest(drawn, {})
        figure = row["figures"]["us a client and peer"]["measured"]
        assert figure == pytest.approx(1e6 * row["median_seconds"]["jaxfed"] / 30)
        for peer in row["peers"].values():
            assert peer["scaled_from_part"] == 1 / 3


def three_digits(number):
    return f"{float(format(number, '.3g')):,g}"


def cost_row(contest):
    """A protocol's row of the table."""
    case, figures = contest["case"], contest["figures"]
    name = contest["task"].removeprefix("secure Hamming, ")
    points = f"{case['n']:,} × {case['m']:,}"
    costs = [three_digits(figures[unit]["measured"]) for unit in UNITS]
    peers = [f"`{peer}` {three_digits(told['ratio'])}" for peer, told in contest["peers"].items()]
    return f"| `{name}` | {points} | {' | '.join(costs)} | {', '.join(peers)} |"


def test_the_page_shows_protocols_costs_as_they_were_measured():
    report = json.loads(Path("results/bench_secure_one_core.json").read_text())
    page = Path("docs/speed.md").read_text()
    assert report["environment"]["command"] in page
    rows = [
        cost_row(contest)
        for contest in report["contests"]
        if contest.get("figures", {}).keys() >= set(UNITS) and contest["case"]["num_bits"] == 4096
    ]
    assert len(rows) == 4
    for row in rows:
        assert row in page


def test_sums_among_neighbors_find_the_mean(short, monkeypatch):
    """Of those that stay, by the complete graph and, where Flower is there, by its SecAgg+."""
    monkeypatch.setattr(sparse_sums, "CLIENTS", 12)
    monkeypatch.setattr(sparse_sums, "ENTRIES", 50)
    monkeypatch.setattr(sparse_sums, "LONG", 1000)
    has_flower = importlib.util.find_spec("flwr") is not None
    around, upload = sparse_sums.sums(with_peers=True)
    assert around.case == {"n": 50, "clients": 12, "neighbors": 6, "leaving": 2}
    vectors = np.random.default_rng(0).uniform(-1, 1, (12, 50))
    expected = np.delete(vectors, [0, 10], axis=0).mean(axis=0)
    np.testing.assert_allclose(around.ours(), expected, atol=1e-9)
    peers = {"complete_graph", *({"flower_secagg_plus"} if has_flower else ())}
    row = run_contest(around, {})
    assert row["peers"].keys() == peers
    assert upload.case == {"n": 1000, "clients": 1000, "neighbors": 76}
    assert run_contest(upload, {})["figures"]["s a client"]["measured"] > 0


def test_pairs_of_many_clients(monkeypatch):
    monkeypatch.setattr(many_clients, "CLIENTS", 7)
    monkeypatch.setattr(many_clients, "COMPARED", 4)
    monkeypatch.setattr(many_clients, "MANY", 8)
    [contest] = many_clients.pairs(with_peers=False)
    [more] = many_clients.all_pairs(with_peers=False)
    runs = (contest.ours, 14), (contest.peers["all_pairs"], 21), (more.ours, 28)
    for run, num_pairs in runs:
        figures = contest.figures(run(), 1.0)
        assert figures["ms a pair"] == pytest.approx(1e3 / num_pairs)
        assert 2 * 10 * 10 * 13 / 8 < figures["bytes a pair"] < 600
