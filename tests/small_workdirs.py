"""Workdirs such as launch.run and launch.sweep leave them: what tests of reports share."""

import json

import numpy as np

XCLP, PER_CLIENT = (0.80, 0.84, 0.88), (0.70, 0.76, 0.76)
POOLED = (0.9, 0.9, 0.9)
ACCURACIES = {"pooled_lp": POOLED, "per_client_lp": PER_CLIENT, "xclp": XCLP}


def metric(values):
    std = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return {"mean": float(np.mean(values)), "std": std, "values": list(values)}


def make_run(path, accuracies=None, *, finished=True, rounds=1, rmse=None, **settings):
    """A workdir such as launch.run leaves it."""
    accuracies = ACCURACIES if accuracies is None else accuracies
    num_repeats = len(next(iter(accuracies.values())))
    config = {
        "seed": 7,
        "num_repeats": num_repeats,
        "rounds": rounds,
        "paper_table": "",
        "dataset": {"name": "digits"},
        "federation": {"num_clients": 2, "labeled_fraction": 0.1},
        "xclp": {"num_bits": 4096, "alpha": 0.99},
    }
    for key, value in settings.items():
        *parents, name = key.split("__")
        section = config
        for parent in parents:
            section = section.setdefault(parent, {})
        section[name] = value
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config))
    lines = [
        {"repeat": repeat, "algorithm": name, "round": number, "test_accuracy": value * number}
        for name, values in accuracies.items()
        for repeat, value in enumerate(values)
        for number in range(1, rounds + 1)
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    counts = [[3, 0], [1, 2]]
    (path / "partition.json").write_text(
        json.dumps({"labeled": counts, "unlabeled": counts, "class_names": ["no", "yes"]})
    )
    if finished:
        algorithms = {
            name: {
                "test_accuracy": metric(values),
                "undefined": {"mean": None, "std": None, "values": [None, *values[1:]]},
                "communication": {"upload_bytes": metric([1e6] * num_repeats)},
            }
            for name, values in accuracies.items()
        }
        if rmse and "xclp" in algorithms:
            algorithms["xclp"]["cosine_rmse"] = metric(rmse)
            algorithms["xclp"]["cosine_rmse_theory"] = metric([np.mean(rmse)] * num_repeats)
        summary = {
            "algorithm": "xclp",
            "num_repeats": num_repeats,
            "algorithms": algorithms,
            "environment": {
                "command": "python -m launch.run --config=a.py",
                "commit": "0123456789abcdef",
                "dirty": True,
                "device": "<cpu & co>",
            },
        }
        (path / "summary.json").write_text(json.dumps(summary))
    return path


def bold(table, column=1):
    """Rows, by their first column, that are bold in another one."""
    return {*table.texts.iloc[:, 0][table.best.iloc[:, column]]}


def make_sweep(path, points, base):
    """A sweep's workdir: (name, overrides, accuracies or None if not started)."""
    path.mkdir(parents=True)
    content = {
        "config_file": "a.py",
        "variant": "",
        "command": "python -m launch.sweep --config=a.py",
        "base": base,
        "points": [{"name": name, "overrides": overrides} for name, overrides, _ in points],
    }
    (path / "sweep.json").write_text(json.dumps(content))
    for name, overrides, accuracies in points:
        if accuracies is not None:
            settings = {key.replace(".", "__"): value for key, value in overrides.items()}
            make_run(path / name, accuracies, rmse=[0.1, 0.2, 0.3], **settings)
    return path
