"""A server that is killed at any write and started again by the same command: the bits of an unbroken run."""

import json

import numpy as np
import pytest
from network_deployment import Deployment, config_of, last_state, tally
from on_demand import on_demand

from jaxfed.config import assembly
from jaxfed.errors import UsageError
from jaxfed.flower.server import server_data, server_run
from jaxfed.flower.server.client_calls import Stages
from jaxfed.host import storage
from jaxfed.host.checkpoint import Checkpoints

NAME = "fedavg"  # whose place the method takes
CONFIG = ("deployment.quorum=0.6", "checkpoint_every=1", "rounds=2")


class Killed(BaseException):
    pass


@pytest.fixture(autouse=True)
def tallying(monkeypatch):
    monkeypatch.setattr(assembly, "make_algorithm", tally)
    monkeypatch.setattr(server_run, "make_algorithm", tally)


def deployment(folder, *more):
    folder.mkdir()
    return Deployment(folder, config_of(NAME, *CONFIG, *more))


def killing(patched, place, how):
    """End the server at a write: before it, in its middle, or after it; returns the writes so far."""
    written, append, write = [], storage.append, Checkpoints.write

    def at(name, before, whole):
        written.append(name)
        if len(written) != place:
            return whole()
        if how == "before":
            raise Killed
        if how == "half":
            before()
            raise Killed
        whole()
        raise Killed

    def append_(file, text):
        at(file.name, lambda: append(file, text[: len(text) // 2]), lambda: append(file, text))

    def write_(self, step, leaves, progress):
        def half():
            self.path.mkdir(parents=True, exist_ok=True)
            (self.path / f".{step}.npz.1.partial").write_bytes(b"PK")

        at("checkpoint", half, lambda: write(self, step, leaves, progress))

    patched.setattr(storage, "append", append_)
    patched.setattr(Checkpoints, "write", write_)
    return written


def killed_at(there, monkeypatch, place, how):
    with monkeypatch.context() as patched:
        written = killing(patched, place, how)
        try:
            there.serve()
        except Killed:
            return written
    return None


@pytest.fixture
def unbroken(tmp_path):
    there = deployment(tmp_path / "unbroken")
    there.serve()
    return last_state(there.place, NAME)


@pytest.mark.parametrize(
    ("how", "every"),
    on_demand([("half", 4), ("half", 1), ("before", 1), ("after", 1)], at_once=[("half", 4)]),
)
def test_a_server_killed_at_any_write_comes_to_the_same_bits(
    tmp_path, monkeypatch, unbroken, how, every
):
    seen = set()
    for place in range(min(2, every), 40, every):
        there = deployment(tmp_path / str(place))
        written = killed_at(there, monkeypatch, place, how)
        if written is None:
            break
        seen.add(written[-1])
        there.serve()
        assert last_state(there.place, NAME) == unbroken, written
        assert all(there.lines())
    assert seen == {"stages.jsonl", "metrics.jsonl", "checkpoint"}
    assert place > 15


def test_a_server_killed_again_and_again(tmp_path, monkeypatch, unbroken):
    there = deployment(tmp_path / "again")
    for place in (9, 4, 12, 2, 7):
        killed_at(there, monkeypatch, place, "half")
    there.serve()
    assert last_state(there.place, NAME) == unbroken
    steps = [line["step"] for line in there.lines() if "step" in line]
    assert len(steps) == len({*steps})


def stopped(tmp_path, monkeypatch, *more):
    """A deployment whose server was killed in its third round."""
    there = deployment(tmp_path / "stopped", "rounds=3", *more)
    killed_at(there, monkeypatch, 22, "before")
    assert (there.place / "checkpoints" / "2.npz").exists()
    return there


def test_a_damaged_newest_checkpoint_is_no_loss(tmp_path, monkeypatch):
    """The clients still have their states of the one before."""
    whole = deployment(tmp_path / "whole", "rounds=3")
    whole.serve()
    there = stopped(tmp_path, monkeypatch)
    (there.place / "checkpoints" / "2.npz").write_bytes(b"PK")
    there.serve()
    assert last_state(there.place, NAME) == last_state(whole.place, NAME)


def test_states_of_an_unknown_time_are_refused(tmp_path, monkeypatch):
    there = stopped(tmp_path, monkeypatch)
    (there.place / "stages.jsonl").unlink()
    with pytest.raises(
        UsageError, match="nothing about the end of round 2, from which the clients"
    ):
        there.serve()


def test_another_number_of_clients_or_another_config_is_one_line(tmp_path, monkeypatch):
    there = stopped(tmp_path, monkeypatch)
    there.config = config_of(NAME, *CONFIG, "rounds=3", "seed=8")
    with pytest.raises(UsageError, match=r"made by another config: config\.seed is"):
        there.serve()


def test_half_a_line_is_removed(tmp_path):
    file = tmp_path / "stages.jsonl"
    file.write_text('{"round": 1, "stage": "update", "step": 4}\n{"round": 1, "st')
    assert Stages(tmp_path).last_step() == 4
    assert file.read_text().endswith("}\n")


def shared(**changes):
    def change(folder):
        file = folder / "shared.json"
        found = json.loads(file.read_text()) | changes
        file.write_text(
            json.dumps({key: value for key, value in found.items() if value is not None})
        )

    return change


def arrays(**changes):
    def change(folder):
        file = folder / "test.npz"
        found = dict(np.load(file)) | {
            key: value(dict(np.load(file))[key]) for key, value in changes.items()
        }
        np.savez(file, **found)

    return change


DAMAGE = {
    "no class_names": (shared(class_names=None), "class_names is missing"),
    "one class": (shared(class_names=["a"]), "class_names=['a']: use a list of names"),
    "a type": (shared(example=["float99", 8]), "example=['float99', 8]: use a list"),
    "a size": (shared(example=["float32", -8]), "example=['float32', -8]: use a list"),
    "no JSON": (lambda folder: (folder / "shared.json").write_text("{"), "cannot read"),
    "another form": (arrays(x=lambda x: x[:, :3]), "examples are float32[3, 8, 1], all others"),
    "a label beyond": (arrays(y=lambda y: y + 90), "label 9"),
    "columns": (shared(columns=["a", "b"]), "columns has 2 names for examples"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_folder_of_the_server_is_one_line(tmp_path, case):
    change, wrong = DAMAGE[case]
    there = deployment(tmp_path / "damaged")
    folder = there.folders[0].parents[1] / "server"
    change(folder)
    with pytest.raises(UsageError) as caught:
        server_data.read(folder)
    assert wrong in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)
