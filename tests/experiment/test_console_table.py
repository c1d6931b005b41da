"""The table of results on a console: units that fit, epsilons, and no edge where there is none."""

from jaxfed.experiment.run.progress import results_table


def metric(*values):
    std = 0.01 if len(values) > 1 else None
    return {"mean": sum(values) / len(values), "std": std, "values": list(values)}


def run_of(**metrics):
    return {"test_accuracy": metric(0.5, 0.52), "seconds": metric(1.234, 2.0), **metrics}


def sent(up, down):
    return {"upload_bytes": metric(up), "download_bytes": metric(down)}


METHODS = {
    "distributed_distillation": run_of(communication=sent(712_700.0, 2.5e6)),
    "dp_fedct": run_of(communication=sent(470.0, 3e9), epsilon=metric(0.30000001)),
    "dp_fedct_estimated": run_of(epsilon_estimated=metric(123_456.0)),
}


def test_what_stands_in_it():
    names = {"dp_fedct": "DP-FedCT, bits"}
    headings, rows = results_table(METHODS, names)
    assert headings[1:] == [
        *("accuracy, %", "epsilon", "epsilon estimated", "seconds", "up", "down"),
    ]
    accuracy = "51.00 ± 1.00"
    assert rows == [
        ["distributed_distillation", accuracy, "-", "-", "1.62", "712.7 kB", "2.5 MB"],
        ["DP-FedCT, bits", accuracy, "0.3", "-", "1.62", "470 B", "3 GB"],
        ["dp_fedct_estimated", accuracy, "-", "1.235e+05", "1.62", "-", "-"],
    ]
