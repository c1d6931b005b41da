"""Packages of the wheel: `jaxfed`, with the entries and the shipped configs within it.

Everything else is in pyproject.toml, which cannot give packages that are found and others that are mapped.
"""

from setuptools import find_packages, setup

WITHIN = {
    "jaxfed.launch": "launch",
    "jaxfed.ml_collections_configs": "ml_collections_configs",
}
setup(packages=[*find_packages(include=["jaxfed", "jaxfed.*"]), *WITHIN], package_dir=WITHIN)
