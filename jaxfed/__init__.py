"""jaxfed: semi-supervised federated learning on accelerators, in JAX.

jaxfed.run(config)                                one experiment by its config, as the launcher runs it
jaxfed.open(workdir)                              the result of a finished one
jaxfed.Federation.from_clients(clients)           clients of one's own arrays
jaxfed.from_flax(module, input_shape)             any Flax network as a model
jaxfed.Training(model)                            what is trained, on what, how
jaxfed.algorithms.fedavg(training=training)       a method; `jaxfed.algorithms.ALGORITHMS` has all
jaxfed.simulate(algorithm, federation)            its rounds on these clients
"""

from importlib import import_module as _import_module

__version__ = "0.2.0"

# Name -> where it is. Imported when it is asked for: JAX and Flax take a second.
_NAMES = {
    "run": "jaxfed.api.run",
    "open": "jaxfed.api.run",
    "simulate": "jaxfed.experiment.run.simulate",
    "Federation": "jaxfed.federation.clients",
    "Training": "jaxfed.training.specification",
    "LocalTraining": "jaxfed.training.local.local_training",
    "ServerTraining": "jaxfed.training.specification",
    "LabelSources": "jaxfed.training.specification",
    "ClientExecution": "jaxfed.federation.execution",
    "Batches": "jaxfed.training.local.local_training",
    "Clock": "jaxfed.federation.clock",
    "from_flax": "jaxfed.models.flax_modules",
    "UsageError": "jaxfed.errors",
}
_WINGS = (
    *("algorithms", "data", "federation", "kernels", "learners", "models", "privacy", "training"),
    "xclp",
)

__all__ = [*_NAMES, *_WINGS]


def __getattr__(name: str) -> object:
    if name in _NAMES:
        return getattr(_import_module(_NAMES[name]), name)
    if name in _WINGS:
        return _import_module(f"jaxfed.{name}")
    raise AttributeError(f"module 'jaxfed' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
