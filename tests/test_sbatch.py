"""examples/run.sbatch with a stand-in for Slurm: it saves at the signal, is queued again, and continues."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from invoking import ROOT

SCRIPT = ROOT / "examples" / "run.sbatch"
SRUN = f"""#!/usr/bin/env bash
# Runs the command as one task, and hands signals on to it, as srun does.
shift
{sys.executable} "$@" &
task=$!
trap 'kill -TERM "$task"' TERM
wait "$task"; status=$?
while kill -0 "$task" 2>/dev/null; do wait "$task"; status=$?; done
exit "$status"
"""
REFUSED = '#!/usr/bin/env bash\necho "$@" > "$REFUSED"\nexit 2\n'  # as launch.run ends at a mistake
SCONTROL = '#!/usr/bin/env bash\necho "$@" >> "$REQUEUED"\n'


@pytest.fixture
def job(tmp_path):
    """Start the job as the scheduler would; returns the process."""
    environment = os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "REQUEUED": str(tmp_path / "requeued"),
        "REFUSED": str(tmp_path / "refused"),
        "SLURM_JOB_ID": "7",
        "SLURM_NTASKS": "1",
        "JAXFED_CACHE": str(tmp_path / "cache"),
    }

    def start(*overrides, srun=SRUN):
        for name, text in (("srun", srun), ("scontrol", SCONTROL)):
            (tmp_path / name).write_text(text)
            (tmp_path / name).chmod(0o755)
        config = "ml_collections_configs/federated_optimization.py:smoke"
        command = ["bash", str(SCRIPT), config, str(tmp_path / "run"), *overrides]
        return subprocess.Popen(command, cwd=ROOT, env=environment)

    return start


def wait_for(file: Path, seconds: float = 120):
    end = time.monotonic() + seconds
    while not (file.is_file() and file.stat().st_size):
        assert time.monotonic() < end, file
        time.sleep(0.05)


@pytest.mark.slow
def test_a_job_whose_time_ends_saves_and_is_queued_again(job, tmp_path):
    overrides = ("--config.rounds=400", "--config.num_repeats=1", "--config.baselines=")
    first = job(*overrides)
    wait_for(tmp_path / "run" / "metrics.jsonl")
    first.send_signal(signal.SIGTERM)
    assert first.wait(timeout=120) == 143
    assert (tmp_path / "requeued").read_text() == "requeue 7\n"
    assert not (tmp_path / "run" / "summary.json").exists()
    assert job(*overrides).wait(timeout=300) == 0  # the scheduler starts it again
    assert (tmp_path / "run" / "summary.json").is_file()
    assert (tmp_path / "requeued").read_text() == "requeue 7\n"


def test_a_mistake_is_not_queued_again(job, tmp_path):
    """The command that srun is given is one of launch.run, which ends with 2 at a mistake."""
    assert job("--config.rounds=0", srun=REFUSED).wait(timeout=120) == 2
    assert not (tmp_path / "requeued").exists()
    command = (tmp_path / "refused").read_text()
    assert " -m launch.run --config=ml_collections_configs/" in command
    assert command.endswith(f" --workdir={tmp_path / 'run'} --config.rounds=0\n")
