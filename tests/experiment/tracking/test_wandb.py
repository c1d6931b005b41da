"""Weights & Biases: a stand-in for its public API, and its own library offline."""

from types import SimpleNamespace

import pytest
from small_tracking import ROUNDS, SmallExperiment, Stop, stand_in

from jaxfed.experiment.tracking import WeightsAndBiases


@pytest.fixture
def experiment(tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.chdir(tmp_path)
    return SmallExperiment(tmp_path, monkeypatch)


class Runs(list):
    """What `wandb.init` has made."""

    def init(self, **given):
        run = SimpleNamespace(given=given, steps=[], summary={}, ended=None, project_url="there")
        run.offline = given["mode"] == "offline"
        run.log = lambda metrics, step: run.steps.append(step)
        run.finish = lambda exit_code: setattr(run, "ended", exit_code)
        self.append(run)
        return run


@pytest.fixture
def account(monkeypatch):
    """A stand-in for wandb; `account.is_there` says whether there is a login."""
    account = SimpleNamespace(is_there=True, asked=[], runs=Runs())

    def login(**how):
        account.asked.append(how)
        return account.is_there

    members = {"init": account.runs.init, "login": login, "run": None, "Settings": dict}
    account.module = stand_in(monkeypatch, "wandb", **members)
    return account


def test_runs_of_methods_and_repeats(experiment, account, capsys):
    experiment.run("w", "wandb", progress=True)
    first, second = account.runs
    assert [run.given["name"] for run in account.runs] == ["drift-0", "drift-1"]
    assert first.given["group"] == second.given["group"]
    assert first.given["job_type"] == "drift"
    assert first.given["config"]["federation.num_clients"] == 4
    assert first.given["mode"] is None
    assert first.given["settings"]["disable_git"]
    assert first.steps == second.steps == ROUNDS
    assert (first.ended, second.ended) == (0, 0)
    assert first.summary["communication/upload_bytes"] == 72
    assert account.asked[0] == {"prompt": False, "verify": False}  # no question on the terminal
    assert capsys.readouterr().out.count("has config and metrics at there") == 1


def test_a_resumed_run_continues_the_run(experiment, account):
    with pytest.raises(Stop):
        experiment.run("w", "wandb", stop_at=6)
    experiment.run("w", "wandb")
    first, again, _ = account.runs
    assert first.given["id"] == again.given["id"]
    assert again.given["resume"] == "allow"
    assert (first.steps, again.steps) == (ROUNDS[:5], [5, 6])
    assert (first.ended, again.ended) == (1, 0)


def test_without_a_login_nothing_is_uploaded(experiment, account, capsys):
    account.is_there = False
    experiment.run("w", "wandb", progress=True)
    assert {run.given["mode"] for run in account.runs} == {"offline"}
    assert capsys.readouterr().out.count("has config and metrics in ./wandb, until") == 1


def test_what_users_set_is_kept(experiment, account, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_PROJECT", "theirs")
    account.is_there = False
    experiment.run("a", "wandb")
    assert account.runs[0].given["mode"] == "online"
    assert account.runs[0].given["project"] == "theirs"
    experiment.run("b", WeightsAndBiases(project="mine", mode="offline", tags=["t"]))
    given = account.runs[-1].given
    assert (given["project"], given["mode"], given["tags"]) == ("mine", "offline", ["t"])
    assert account.asked == []
