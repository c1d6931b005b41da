"""Packages and extras of the wheel: `jaxfed`, with the entries and the shipped configs within it.

Everything else is in pyproject.toml, which can neither give packages that are found and others that are
mapped, nor take the core and the extras from the sections of one requirements.txt.
"""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
WITHIN = {
    "jaxfed.launch": "launch",
    "jaxfed.ml_collections_configs": "ml_collections_configs",
}


def requirements(text: str) -> list[str]:
    """Return the lines that name a package, without comments."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return [line for line in lines if line]


_, *SECTIONS = re.split(
    r"^# \[(\w+)\].*$", (HERE / "requirements.txt").read_text(), flags=re.MULTILINE
)
GROUPS = {
    name: requirements(text) for name, text in zip(SECTIONS[::2], SECTIONS[1::2], strict=True)
}
CORE = GROUPS.pop("core")
ALL = sorted({line for lines in GROUPS.values() for line in lines})
OPTIONAL = {
    path.stem.removeprefix("requirements-"): requirements(path.read_text())
    for path in HERE.glob("requirements-*.txt")
}
setup(
    packages=[*find_packages(include=["jaxfed", "jaxfed.*"]), *WITHIN],
    package_dir=WITHIN,
    install_requires=CORE,
    extras_require={**GROUPS, "all": ALL, **OPTIONAL},
)
