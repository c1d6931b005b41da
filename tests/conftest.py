"""Strict numerics for every test: no silent promotion of dtypes or ranks, two forced CPU devices."""

import ctypes
import gc
import os
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import metadata
from typing import Any

# Before JAX starts: two host devices, so that sharded execution is tested without an accelerator (a
# test that needs more starts pytest again with a number of its own), code in one piece, and by XLA's older
# emitters where it has them, which compile in half of the time. XLA ends a process over an unknown flag.
_FLAGS = {
    "xla_force_host_platform_device_count": "2",
    "xla_cpu_parallel_codegen_split_count": "1",
}
if metadata.version("jaxlib").startswith("0.10."):
    _FLAGS["xla_cpu_use_fusion_emitters"] = "false"
_ASKED = os.environ.get("XLA_FLAGS", "")
os.environ["XLA_FLAGS"] = " ".join(
    [_ASKED, *(f"--{name}={value}" for name, value in _FLAGS.items() if name not in _ASKED)]
).strip()
# Tests compile much and run little, so LLVM hardly optimizes, unless this is set to 0, or a file asks
# for `as_users_compile`.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
# Nobody reads in a program's text where its operations were written; without, a test takes 0.96 of the time.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")

gc.disable()  # what is imported and collected from here on stays

import jax  # noqa: E402
import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

from jaxfed.registry import Registry  # noqa: E402

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


if metadata.version("jaxlib").startswith("0.10."):
    from jax._src.interpreters import mlir

    class _FewDialects(mlir.JaxIrContext):  # type: ignore[misc]
        """A program's context with the dialects of a CPU's programs: all take 4 ms of every compilation."""

        def load_all_available_dialects(self) -> None:
            self.dialects["func"]

    mlir.JaxIrContext = _FewDialects

_C_LIBRARY = ctypes.CDLL(None)
_KEPT = 2 * 2**30  # bytes

# Compilation makes first examples slow; the same examples on every run keep CI repeatable.
settings.register_profile("jaxfed", deadline=None, derandomize=True, max_examples=20)
settings.load_profile("jaxfed")


def pytest_configure(config: pytest.Config) -> None:
    """What one file has compiled the next finds on disk: in this process, its children and xdist's others."""
    if not hasattr(config, "workerinput"):  # the first process, whose variables all others inherit
        folder = tempfile.mkdtemp(prefix="jaxfed-tests-")
        os.environ["JAXFED_CACHE"] = folder
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    jax.config.update("jax_compilation_cache_dir", os.path.join(os.environ["JAXFED_CACHE"], "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    # One process may read what another is writing. It then compiles for itself.
    config.addinivalue_line("filterwarnings", "ignore:Error reading persistent compilation cache")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow what `sample` leaves out of a test's cases: of N cases, number 0, N / n, 2 N / n, ...

    Cases that are slow by themselves do not count.
    """
    cases: dict[tuple[pytest.Item | None, str], list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sample") and not item.get_closest_marker("slow"):
            cases.setdefault((item.parent, item.name.split("[")[0]), []).append(item)
    for same in cases.values():
        (number,) = same[0].get_closest_marker("sample").args
        kept = {i * len(same) // number for i in range(number)}
        for i, item in enumerate(same):
            if i not in kept:
                item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Modules and the list of tests stay: the collector need not look at them after every test."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    gc.enable()


@pytest.fixture(scope="module")
def as_users_compile() -> Iterator[None]:
    """For a file that computes much, or compares bits of one program and another."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture
def full_disk() -> Callable[..., AbstractContextManager[None]]:
    """`with full_disk(after=BYTES)`: this process can write no file beyond so many bytes."""

    @contextmanager
    def limited(*, after: int) -> Iterator[None]:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (after, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return limited


@pytest.fixture(autouse=True, scope="module")
def programs_of_many_files() -> Iterator[None]:
    """What files have compiled goes once it fills this much: kept, the suite's programs take gigabytes."""
    yield
    if _resident() < _KEPT:
        return
    jax.clear_caches()
    gc.collect()
    trim = getattr(_C_LIBRARY, "malloc_trim", None)  # glibc's, which else keeps what was freed
    if trim is not None:
        trim(0)


@pytest.fixture(autouse=True, scope="module")
def registries_as_they_were() -> Iterator[None]:
    """What a file registers is unknown to the next, and to the pages that list what there is."""
    registered: list[tuple[Registry, str]] = []
    register = Registry.register

    def noted(registry: Registry, name: str) -> Callable[[Any], Any]:
        add = register(registry, name)
        registered.append((registry, name))
        return add

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Registry, "register", noted)
        yield
    for registry, name in registered:
        registry.pop(name, None)


def _resident() -> int:
    """Bytes of this process in memory; without Linux's /proc as many as there can be."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return sys.maxsize


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `-n`, a file's tests run in one process: what they share is made and compiled once."""
    from xdist.scheduler import LoadFileScheduling

    class FileByFile(LoadFileScheduling):
        """Of a process that dies, the test it died of fails and the rest of its files go to another.

        xdist's own runs that test again, and waits for ever once all processes have died of it.
        """

        def remove_node(self, node: Any) -> str | None:
            files = self.assigned_work[node]
            unfinished = (
                name for file in files.values() for name, done in file.items() if not done
            )
            died_of = next(unfinished, None)
            for file in files.values():
                if died_of in file:
                    file[died_of] = True
            self.assigned_work[node] = {}
            super().remove_node(node)
            self.workqueue.update(
                {name: file for name, file in files.items() if not all(file.values())}
            )
            for other in self.nodes:
                self._reschedule(other)
            return died_of

    return FileByFile(config, log) if config.getvalue("dist") == "load" else None


@pytest.fixture
def hang_ups_arrive() -> Iterator[None]:
    """SIGHUP does what it does by default, here and in child processes, also under `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
