"""The sdist and its wheel: one name in site-packages, with entries and configs that work from any folder."""

import os
import re
import runpy
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
INSTALLED = {"jaxfed", f"jaxfed-{PROJECT['version']}.dist-info"}
SMALL = "--config.num_repeats=1"


@pytest.fixture
def given(monkeypatch):
    """What setup.py gives to setuptools."""
    setuptools = pytest.importorskip("setuptools")
    found = {}
    monkeypatch.setattr(setuptools, "setup", found.update)
    monkeypatch.chdir(ROOT)
    runpy.run_path("setup.py")
    return found


def test_one_name_is_installed(given):
    assert {name.partition(".")[0] for name in given["packages"]} == {"jaxfed"}
    rooms = {".".join(path.parent.parts) for path in Path("jaxfed").rglob("*.py")}
    assert set(given["packages"]) == rooms | given["package_dir"].keys()


def test_the_core_and_extras_are_sections_of_one_list(given):
    named = {re.split(r"[<>=;]", line)[0] for line in given["install_requires"]}
    assert {"jax", "flax", "optax", "numpy"} < named
    extras = given["extras_require"]
    assert {"data", "secure", "lab", "all", "dev", "flower", "learners"} <= extras.keys()
    assert set(extras["all"]) == {*extras["data"], *extras["secure"], *extras["lab"]}
    lines = Path("requirements.txt").read_text().splitlines()
    assert sum(line[:1] not in ("", "#") for line in lines) == len(
        [*given["install_requires"], *extras["all"]]
    )


DIGITS = "--config=ml_collections_configs/xclp_digits.py"


@pytest.mark.parametrize(
    ("package", "command"),
    [("sklearn", ["launch.run", DIGITS, "--workdir=w"]), ("pandas", ["launch.report", "w"])],
)
def test_a_package_of_an_extra_that_is_missing_is_one_line(tmp_path, package, command):
    (tmp_path / "sitecustomize.py").write_text(f"import sys; sys.modules[{package!r}] = None")
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    given = [sys.executable, "-m", *command]
    done = subprocess.run(given, env=env, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    said = f"{package} is not installed; pip install -r requirements.txt, or jaxfed[all]"
    assert done.stderr == f"jaxfed: {said}\n"


def run(*command, **options):
    """A process without this one's paths but that of commands, among which are Flower's."""
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    env["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), env["PATH"]])
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, **options)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A virtual environment with the wheel of the sdist; requirements are those of this one."""
    folder = tmp_path_factory.mktemp("wheel")
    listed = run("git", "ls-files", cwd=ROOT)
    if listed.returncode:
        pytest.skip("not a clone of the repository")
    for name in listed.stdout.split("\n"):
        if name and (ROOT / name).is_file() and not name.startswith(("results/", "tests/")):
            (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "source" / name).write_bytes((ROOT / name).read_bytes())
    pip = (sys.executable, "-m", "pip")
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    if run(*pip, "install", "-q", "--target", str(folder / "tools"), *wanted).returncode:
        pytest.skip("setuptools cannot be downloaded")
    make = f"import sys; sys.path.insert(0, {str(folder / 'tools')!r}); "
    make += "from setuptools import build_meta; build_meta.build_sdist('..')"
    done = run(sys.executable, "-c", make, cwd=folder / "source")
    assert done.returncode == 0, done.stderr
    (sdist,) = folder.glob("*.tar.gz")
    built = run(*pip, "wheel", "--no-deps", "-w", str(folder), str(sdist), cwd=folder)
    assert built.returncode == 0, built.stderr
    (wheel,) = folder.glob("*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", str(folder / "venv"))
    python = folder / "venv" / "bin" / "python"
    done = run(*pip, "--python", str(python), "install", "--no-deps", "--no-index", str(wheel))
    assert done.returncode == 0, done.stderr
    (packages,) = (folder / "venv").glob("lib/python*/site-packages")
    assert {path.name for path in packages.iterdir()} == INSTALLED
    (packages / "requirements.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return wheel, python.parent


@pytest.mark.slow
def test_every_command_from_another_folder(installed, tmp_path):
    def call(script, *arguments):
        done = run(str(installed[1] / script), *arguments, cwd=tmp_path)
        assert done.returncode == 0, (script, done.stdout, done.stderr)
        return done.stdout

    assert call("jaxfed-run", "--help_keys=xclp.alpha").startswith("xclp.alpha")
    call("jaxfed-run", "--config=xclp_digits:smoke", "--workdir=run", SMALL)
    assert "is finished" in call("jaxfed-run", "--config=xclp_digits:smoke", "--workdir=run", SMALL)
    points = ("--sweep.xclp.num_bits=64,128", SMALL)
    config = "--config=ml_collections_configs/xclp_digits.py:smoke"
    assert "2 of 2" in call("jaxfed-sweep", config, "--workdir=sweep", *points)
    call("jaxfed-audit", "--config=audit:smoke", "--workdir=audit", SMALL)
    call("jaxfed-report", "run", "sweep", "audit", "--out=report")
    assert (tmp_path / "report" / "report.html").is_file()
    assert "protofssl" in call("jaxfed-costs", "--config=protofssl:smoke")
    for script in ("jaxfed-bench", "jaxfed-growth", "jaxfed-accelerator"):
        done = run(str(installed[1] / script), cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert "needs the repository" in done.stderr


APP = """
from flwr.cli.build import build_fab_from_disk
from flwr.cli.config_utils import load_and_validate
from jaxfed.flower.deployment import commands
load_and_validate(commands.APP / "pyproject.toml")
print(commands.APP, len(build_fab_from_disk(commands.APP)))
"""


@pytest.mark.slow
def test_a_federation_from_the_wheel(installed, tmp_path):
    """It has the app's folder, Flower accepts it, and its processes find jaxfed."""
    pytest.importorskip("flwr", reason="pip install -r requirements-flower.txt")
    python = str(installed[1] / "python")
    done = run(python, "-W", "ignore", "-c", APP, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folder, size = done.stdout.split()[-2:]
    assert str(installed[1].parent) in folder
    assert 0 < int(size) < 10_000
    config = tmp_path / "network.py"
    config.write_bytes((ROOT / "examples/flower/fedavg_digits.py").read_bytes())
    own = (f"--config={config}", "--workdir=w", "--config.rounds=1")
    done = run(str(installed[1] / "jaxfed-flower"), "try", *own, cwd=tmp_path)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert "0 of 359 labels differ" in done.stdout
