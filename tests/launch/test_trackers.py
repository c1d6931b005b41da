"""The flag --tracker of launch.run and launch.sweep."""

import pytest
from invoking import DIGITS, invoke
from small_tracking import stand_in

from launch import sweep

SWEEP = (f"--config={DIGITS}:smoke", "--dry_run", "--sweep.xclp.alpha=0.5,0.9")


def test_a_sweep_tracks_every_point(tmp_path, monkeypatch):
    for name in ("wandb", "tensorboard"):
        stand_in(monkeypatch, name)
    shown = []
    monkeypatch.setattr("builtins.print", lambda *told, **how: shown.append(*told))
    given = [*SWEEP, f"--workdir={tmp_path / 's'}", "--tracker=wandb", "--tracker=tensorboard"]
    assert invoke(given, sweep.main) == (0, "")
    commands = [line for line in shown if "-m launch.run" in line]
    assert len(commands) == 2
    assert all("--tracker=wandb --tracker=tensorboard" in command for command in commands)


@pytest.mark.parametrize("main", [None, sweep.main], ids=["run", "sweep"])
def test_a_mistake_is_one_line_before_anything_runs(main, tmp_path):
    given = [f"--config={DIGITS}:smoke", f"--workdir={tmp_path / 'w'}", "--tracker=tensorbord"]
    how = {}
    if main is not None:
        how = {"main": main}
        given.append("--dry_run")
    assert invoke(given, **how) == (
        2,
        "jaxfed: --tracker='tensorbord': no such tracker, did you mean 'tensorboard'?\n",
    )
    assert not (tmp_path / "w").exists()
