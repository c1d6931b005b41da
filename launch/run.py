"""Run one experiment: a config's algorithm and its baselines, over its repeats.

python -m launch.run --config=ml_collections_configs/NAME.py[:VARIANT] --workdir=DIR
    [--overwrite] [--tracker=tensorboard|wandb] [--config.KEY=VALUE ...]
python -m launch.run --help_keys[=PREFIX] [--config=FILE.py[:VARIANT] --config.KEY=VALUE ...]

A method whose loss is no longer finite stops; the others go on. The exit status is 1 if a method has stopped,
if none of its clients has a model in the end, or if its last round failed at every client.

A finished workdir is left as it is. An unfinished one resumes. One made by another config is refused.
"""

from __future__ import annotations

from absl import flags

from jaxfed.host.interruption import Interruption

from . import entry, one_experiment

flags.adopt_module_key_flags(one_experiment)
_HELP_KEYS = flags.DEFINE_string(
    "help_keys",
    None,
    "Print all keys of configs, or those that begin with a prefix (training, xclp.alpha), with defaults, "
    "allowed values and meanings; with --config also the values that it has.",
)


def main(arguments: list[str], overrides: list[str], interruption: Interruption) -> int:
    """Run the experiment, or print the reference of keys."""
    if _HELP_KEYS.value is not None:
        from jaxfed.config import file as config_file
        from jaxfed.config.overrides import help_text

        entry.refuse(arguments)
        asked, spec = _HELP_KEYS.value, flags.FLAGS["config"].value
        if overrides and not spec:
            entry.require(config=spec)
        config = config_file.load(spec, overrides) if spec else None
        print(help_text(asked, config))
        return 0
    return one_experiment.conducted(arguments, overrides, interruption)


if __name__ == "__main__":
    entry.start(main)
