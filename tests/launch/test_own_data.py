"""The commands of docs/your-data.md, on small data of such kinds."""

import json
import re
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
from invoking import invoke
from on_demand import on_demand
from PIL import Image

from jaxfed.data import pack


def page_commands():
    """Name of the data -> arguments, of every command of the page."""
    text = Path("docs/your-data.md").read_text()
    blocks = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    commands = [block.replace("\\\n", " ").split() for block in blocks]
    assert all(command[:3] == ["python", "-m", "launch.run"] for command in commands)
    return {
        argument.partition("=")[2]: command[3:]
        for command in commands
        for argument in command
        if argument.startswith("--config.dataset.name=")
    }


def write_patients(place):
    """Three hospitals, two diagnoses, of half of the rows unknown; told by the large feature's sign."""
    rows = ["dose,weight,blood,diagnosis,hospital"]
    for i in range(120):
        diagnosis = ("well", "ill")[i % 2]
        sign = 1 if diagnosis == "ill" else -1
        rows.append(
            f"{sign * (1 + i / 1000)},{sign * (900 + i)},{'AB'[i % 2]},"
            f"{diagnosis if i % 4 < 2 else ''},{('north', 'south', 'west')[i % 3]}"
        )
    (place / "patients.csv").write_text("\n".join(rows) + "\n")


def write_patients_parquet(place):
    write_patients(place)
    pyarrow.parquet.write_table(
        pyarrow.csv.read_csv(place / "patients.csv"), place / "patients.parquet"
    )


def write_arrays(place):
    rng = np.random.default_rng(0)
    y = np.arange(150) % 3
    x = rng.normal(size=(150, 4)) + 8 * np.eye(3, 4)[y]
    np.savez(place / "arrays.npz", x=x, y=np.where(np.arange(150) < 90, y, np.nan))


def write_features(place):
    y = np.arange(150) % 3
    x = np.random.default_rng(0).normal(size=(150, 4)) + 8 * np.eye(3, 4)[y]
    (place / "features").mkdir()
    np.save(place / "features" / "embeddings.npy", x.astype(np.float32))
    rows = [f"{'abc'[label]},{'ns'[row % 2]}" for row, label in enumerate(y)]
    (place / "features" / "labels.csv").write_text("\n".join(["diagnosis,hospital", *rows]))


def write_photos(place):
    rng = np.random.default_rng(0)
    for name, level in (("dark", 40), ("light", 210)):
        (place / "photos" / name).mkdir(parents=True)
        for i in range(80):
            pixels = rng.integers(level - 40, level + 40, (12, 10, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(place / "photos" / name / f"{i}.png")


def write_clients(place):
    rng = np.random.default_rng(0)
    labels = [rng.integers(0, 3, 20) for _ in range(40)]
    clients = [(rng.normal(4 * y[:, None], 1, (20, 8)).astype(np.float32), y) for y in labels]
    pack(clients, place / "clients", test=clients[0])


# name -> what writes it, clients, points of unknown class
DATA = {
    "patients.csv": (write_patients, 3, 60),
    "patients.parquet": (write_patients_parquet, 3, 60),
    "arrays.npz": (write_arrays, 5, 60),
    "features": (write_features, 2, 0),
    "photos": (write_photos, 20, 0),
    "clients": (write_clients, 40, 0),
}


def test_every_kind_has_a_command():
    assert page_commands().keys() == DATA.keys()


@pytest.mark.parametrize("name", on_demand(DATA, at_once={"patients.csv"}))
def test_the_pages_commands_for_ones_own_data(name, tmp_path, monkeypatch):
    write, num_clients, num_unknown = DATA[name]
    write(tmp_path)
    monkeypatch.setenv("JAXFED_DATA", str(tmp_path))
    monkeypatch.setenv("JAXFED_CACHE", str(tmp_path / "cache"))
    arguments = [
        argument for argument in page_commands()[name] if not argument.startswith("--workdir=")
    ]
    smaller = ["--config.num_repeats=1", "--config.baselines=", "--config.execution.plots=false"]
    if name != "clients":
        smaller += ["--config.xclp.num_bits=64"]
    if name == "photos":
        smaller += ["--config.rounds=4", "--config.training.labeled_only_rounds=2"]
        smaller += ["--config.model.channels=4,8"]
    workdir = tmp_path / "run"
    status, complaint = invoke([*arguments, *smaller, f"--workdir={workdir}"])
    assert status == 0, complaint
    assert json.loads((workdir / "summary.json").read_text())["test_accuracy"] > 0.9
    held = json.loads((workdir / "partition.json").read_text())
    counts = {kind: np.array(held[kind]) for kind in ("labeled", "unlabeled", "new")}
    assert all(len(table) == num_clients for table in counts.values())
    if num_unknown:
        assert held["class_names"][-1] == "(unknown)"
        assert counts["unlabeled"][:, -1].sum() == num_unknown
        assert counts["unlabeled"][:, :-1].sum() == 0  # all labels that there are
    else:
        assert "(unknown)" not in held["class_names"]


@pytest.mark.slow
def test_the_readmes_six_methods(tmp_path):
    """README's command as it is, but for one repeat of few rounds."""
    text = Path("README.md").read_text()
    (block,) = [b for b in re.findall(r"```bash\n(.*?)```", text, re.DOTALL) if "runs/six" in b]
    words = [word for word in block.replace("\\\n", " ").split()[3:] if "--workdir" not in word]
    smaller = ["--config.num_repeats=1", "--config.rounds=3", "--config.xclp.num_bits=64"]
    smaller += ["--config.training.labeled_only_rounds=1"]
    workdir = tmp_path / "run"
    status, complaint = invoke([*words, *smaller, f"--workdir={workdir}"])
    assert status == 0, complaint
    assert len(json.loads((workdir / "summary.json").read_text())["algorithms"]) == 6
