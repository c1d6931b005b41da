"""One file an experiment: `get_config(variant)` and, where it has one, `sweep(add)`."""
