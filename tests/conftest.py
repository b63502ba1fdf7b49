"""Setup of all tests: speed, sizes, property tests, collection of large suites, signals."""

import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.filesystem.mutants.table import KILLERS
from tests.root import is_root
from tests.sandbox.container_image import build_test_image, remove_test_image
from tests.sizes import set_long, size
from weakincentives.sandbox import PodmanSandboxConfig

# a busy machine is slow, and that is no fault of the code: there is no deadline anywhere
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--long`, the one switch for the sizes of the long walks."""
    parser.addoption("--long", action="store_true", help="run the long walks in full size")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector from walking through all tests, again and again.

    It would do so while they are collected, at every `gc.collect()` in one of them, and in
    every process that one of them forks.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the slow tests: a long one that begins last is waited for by idle workers.

    In the short run a double of a backend gets the tests that a mutant fails.
    """
    left_out = [each for each in items if _is_left_out(each)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [each for each in items if not _is_left_out(each)]
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def _is_left_out(item: pytest.Item) -> bool:
    if size(short=False, long=True) or item.get_closest_marker("double") is None:
        return False
    return item.name.partition("[")[0] not in KILLERS


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let an ordinary user skip the tests that need root."""
    if item.get_closest_marker("root") and not is_root():
        item.add_marker(pytest.mark.skip(reason="needs root"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    """After a file of tests, free its garbage, and keep the collector from what is left of it.

    Of each test some objects stay as long as the run. After thousands of tests, every
    `gc.collect()` would take a third of a second to walk through them.
    """
    try:
        return (yield)
    finally:
        if nextitem is None or nextitem.path != item.path:
            gc.collect()
            gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    """Choose sizes and directories, and handle signals where a shell or `nohup` ignores them."""
    _keep_bytecode()
    _write_to_memory()
    set_long(bool(config.getoption("--long")))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _keep_bytecode() -> None:
    """Compile modules once, and not in each of the many processes that the tests start."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


def _write_to_memory() -> None:
    """Keep temporary files in memory: thousands of tests wait for a disk to have what they wrote.

    Only if there is room: in a container, this directory often has 64 MB.
    """
    memory = Path("/dev/shm")
    if "TMPDIR" not in os.environ and memory.is_dir() and shutil.disk_usage(memory).free > 4e9:
        os.environ["TMPDIR"] = tempfile.tempdir = str(memory)


def pytest_sessionfinish() -> None:
    """Remove the image that tests of containers have made, once all workers have finished."""
    remove_test_image()


@pytest.fixture(scope="session")
def podman() -> PodmanSandboxConfig:
    """Return a configuration with an image; skip where podman is missing."""
    return build_test_image()


@pytest.fixture
def default_image(podman: PodmanSandboxConfig, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make the image of the tests the one that is used unless another is named."""
    monkeypatch.setenv("WEAKINCENTIVES_IMAGE", podman.image)
    return podman.image
