"""A method that trains on another's labels is named so, wherever a report names it."""

from small_workdirs import make_run
from whole_figures import run_figures

from jaxfed.experiment.store.records import read_run
from jaxfed.reports import tables
from jaxfed.reports.names import methods_of

METHODS = dict.fromkeys(("xclp", "fedavg_xclp", "fedprox", "scaffold", "quick"), (0.5, 0.6))


def run_of(folder, fedprox="xclp"):
    settings = {
        "fedprox__pseudo_label": fedprox,
        "scaffold__pseudo_label": "none",
        "quick__algorithm": "fedprox",
        "fedavg_xclp__pseudo_label": "xclp",  # its name says it
    }
    return read_run(make_run(folder, METHODS, rounds=2, **settings))


def test_a_run(tmp_path):
    run = run_of(tmp_path / "r")
    assert methods_of([run]).names == {
        "xclp": "XCLP",
        "fedavg_xclp": "FedAvg + XCLP",
        "fedprox": "FedProx + XCLP",
        "quick": "FedProx + XCLP (quick)",
        "scaffold": "SCAFFOLD",
    }
    rows = [row[0].text for row in tables.run_table(run, "r").rows]
    assert {"FedProx + XCLP", "SCAFFOLD", "XCLP − (FedProx + XCLP)", "XCLP − SCAFFOLD"} <= {*rows}
    assert "FedProx" not in rows
    figures = run_figures(run)
    (ticks, legend) = (
        [t.get_text().split("  ")[0] for t in figures["algorithms"].axes[0].get_yticklabels()],
        [text.get_text() for text in figures["rounds"].legends[0].get_texts()],
    )
    for names in (ticks, legend):
        assert "FedProx + XCLP" in names
        assert "FedProx" not in names


def test_a_column_over_several_runs_has_a_name_that_all_agree_on(tmp_path):
    def headings(*fedprox):
        runs = [
            run_of(tmp_path / "-".join(fedprox) / str(i), each) for i, each in enumerate(fedprox)
        ]
        rows = [tables.Row([i], run) for i, run in enumerate(runs)]
        return tables.settings_table("t", "t", ["seed"], rows, "test_accuracy").columns

    assert "FedProx + per-client LP" in headings("per_client_lp", "per_client_lp")
    assert "FedProx" in headings("per_client_lp", "xclp")
