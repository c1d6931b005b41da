"""MLflow: a stand-in for the client's public methods, and the library itself with a local database."""

from types import SimpleNamespace

import pytest
from small_tracking import ROUNDS, SmallExperiment, Stop, stand_in

from jaxfed.experiment.tracking import MLflow

UPLOADED = "final/communication/upload_bytes"


@pytest.fixture
def experiment(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.chdir(tmp_path)
    return SmallExperiment(tmp_path, monkeypatch)


class Client:
    """The methods of `mlflow.MlflowClient` that a tracker calls."""

    def __init__(self):
        self.runs, self.experiments, self.batches = {}, {}, []

    def get_experiment_by_name(self, name):
        number = self.experiments.get(name)
        return number and SimpleNamespace(experiment_id=number)

    def create_experiment(self, name):
        return self.experiments.setdefault(name, str(len(self.experiments) + 1))

    def search_runs(self, experiments, text, max_results):
        name = text.removeprefix("tags.`jaxfed.id` = '").removesuffix("'")
        return [run for run in self.runs.values() if run.tags["jaxfed.id"] == name]

    def create_run(self, experiment, start_time, tags, run_name):
        assert run_name not in self.runs
        made = SimpleNamespace(info=SimpleNamespace(run_id=run_name), tags=tags, params={})
        made.metrics, made.status, made.statuses = {}, "RUNNING", []
        return self.runs.setdefault(run_name, made)

    def log_batch(self, run_id, metrics=(), params=()):
        self.batches.append(len(params))
        self.runs[run_id].params.update(params)
        for key, value, _, step in metrics:
            self.runs[run_id].metrics.setdefault(key, []).append((step, value))

    def update_run(self, run_id, status):
        self.runs[run_id].status = status

    def set_terminated(self, run_id, status, end_time):
        self.runs[run_id].status = status
        self.runs[run_id].statuses.append(status)


@pytest.fixture
def client(monkeypatch):
    client = Client()
    members = {"MlflowClient": lambda uri: client, "get_tracking_uri": lambda: "here"}
    stand_in(monkeypatch, "mlflow", **members)
    entities = {"Metric": lambda *given: given, "Param": lambda *given: given}
    stand_in(monkeypatch, "mlflow.entities", **entities)
    return client


def test_runs_of_methods_and_repeats(experiment, client, capsys):
    with pytest.raises(Stop):
        experiment.run("w", "mlflow", stop_at=6)
    assert client.runs["drift-0"].status == "KILLED"
    experiment.run("w", "mlflow", progress=True)
    assert set(client.runs) == {"drift-0", "drift-1"}
    run = client.runs["drift-0"]
    assert [step for step, _ in run.metrics["mean"]] == ROUNDS
    assert run.metrics[UPLOADED] == [(6, 72.0)]
    assert run.params["federation.num_clients"] == "4"
    assert run.statuses == ["KILLED", "FINISHED"]
    assert (run.tags["method"], run.tags["repeat"]) == ("drift", "0")
    assert client.experiments == {"jaxfed": "1"}
    assert max(client.batches) <= 100  # MLflow's limit
    assert sum(client.batches) == 2 * len(run.params)  # a resumed run's may have changed
    assert capsys.readouterr().out.count("mlflow logs to here") == 1


def test_the_experiment_that_users_name(experiment, client, monkeypatch):
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "theirs")
    experiment.run("a", "mlflow")
    experiment.run("b", MLflow(experiment="mine"))
    assert list(client.experiments) == ["theirs", "mine"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::UserWarning")
def test_the_library_itself(experiment, capsys):
    mlflow = pytest.importorskip("mlflow", reason="pip install -r requirements-trackers.txt")
    uri = f"sqlite:///{experiment.folder}/m.db"
    with pytest.raises(Stop):
        experiment.run("w", MLflow(tracking_uri=uri), stop_at=6)
    experiment.run("w", MLflow(tracking_uri=uri), progress=True)
    assert "failed" not in capsys.readouterr().out
    client = mlflow.MlflowClient(uri)
    (number,) = (e.experiment_id for e in client.search_experiments() if e.name == "jaxfed")
    runs = {run.info.run_name: run for run in client.search_runs([number])}
    assert set(runs) == {"drift-0", "drift-1"}
    for run in runs.values():
        history = client.get_metric_history(run.info.run_id, "mean")
        assert sorted(metric.step for metric in history) == ROUNDS
        assert run.info.status == "FINISHED"
        assert run.data.params["federation.num_clients"] == "4"
        assert run.data.metrics[UPLOADED] == 72
