"""A container that starts when it is needed.

The OCI runtime is the first that works.
"""

import json
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from weakincentives.posix import encode_frame
from weakincentives.sandbox.container import engine, runner
from weakincentives.sandbox.container.client import RunnerClient
from weakincentives.sandbox.container.image import find_pin
from weakincentives.sandbox.container.prune import prune_once
from weakincentives.sandbox.protocol import SandboxUnavailableError
from weakincentives.sandbox.seccomp import (
    NETWORK_FAMILIES,
    RULES,
    build_filter,
    is_supported,
    socket_rules,
)

# what the runner consists of, each after those that it imports
_MODULES = (
    *("posix.descriptors", "posix.frames", "posix.workers", "posix.child_process"),
    *("sandbox.attribute_calls", "sandbox.process_tree", "sandbox.supervisor"),
    *("sandbox.command", "sandbox.launcher"),
    *("sandbox.container.file_server", "sandbox.container.runner"),
)
_PACKAGES = ("", ".posix", ".sandbox", ".sandbox.container")
_SOURCES = Path(str(runner.__file__)).parents[2]
_START_TIMEOUT = 60.0  # seconds
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# reads the modules from standard input and starts the runner
_BOOTSTRAP = """
import json, os, sys, types
def read(size):
    data = b""
    while len(data) < size:
        data += os.read(0, size - len(data)) or sys.exit("The host has gone")
    return data
modules, arguments = json.loads(read(int.from_bytes(read(4), "big")))
for name, source in modules:
    module = types.ModuleType(name)
    module.__path__, module.__file__ = [], name
    sys.modules[name] = module
    parent, _, last = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], last, module)
    exec(compile(source, name, "exec"), module.__dict__)
module.main(*arguments)
"""

_PROGRAM = ("python3", "-I", "-S", "-X", "utf8", "-c", _BOOTSTRAP)
# what an OCI runtime prints if it cannot start any container on this host
_RUNTIME_ERRORS = ("OCI runtime", "crun", "cgroups in hybrid mode", "setrlimit", "runc")

# the image and the runtime that have started a container
_known_starts: dict[engine.PodmanSandboxConfig, tuple[str, str | None]] = {}


class _LaunchError(Exception):
    """What podman printed when it could not start a container."""


class Container:
    """A container that is started when it is needed, with the runner inside; thread-safe."""

    def __init__(
        self,
        config: engine.PodmanSandboxConfig,
        workspace: str | None,
        *,
        readable: Iterable[str] = (),
        untrusted: Iterable[str | os.PathLike[str]] = (),
    ) -> None:
        """Start nothing yet.

        Args:
            config: The engine, the image and the limits; what it leaves unset comes from the
                environment.
            workspace: The host's directory to bind; None for an empty workspace inside.
            readable: Other paths of the host to bind, read-only.
            untrusted: Directories in which podman is not looked for.
        """
        self._config = config = engine.configure(config)
        self._engine = engine.PodmanEngine(config, untrusted)
        self._workspace = workspace
        self._readable = tuple(readable)
        self._lock = threading.Lock()
        self._client: RunnerClient | None = None
        self._name = ""
        self._network: int | None = None
        self._owner = os.getpid()
        self._is_closed = False
        self._discard: Callable[[], object] = lambda: None
        self.path: str = _PATH
        self.image: str = config.image
        self.limited: frozenset[str] = frozenset()

    @property
    def name(self) -> str | None:
        """The name of the container; None if it does not run."""
        client = self._client
        return self._name if client is not None and client.is_alive else None

    def connect(self) -> RunnerClient:
        """Return the connection to the runner; start the container if it does not run.

        Raises:
            SandboxUnavailableError: It cannot be started.
        """
        with self._lock:
            if self._is_closed:
                raise SandboxUnavailableError("Sandbox is closed")
            if os.getpid() != self._owner:
                raise SandboxUnavailableError("The container belongs to the parent process")
            if self._client is None or not self._client.is_alive:
                self._client = self._start()
            return self._client

    def call(self, operation: str, *, data: bytes = b"", **request: object) -> tuple[Any, bytes]:
        """Run a file operation in the container; return its value and data.

        Raises:
            OSError: The operation failed in the container.
            SandboxUnavailableError: The container did not start.
        """
        return self.connect().call(operation, data=data, **request)

    def open_network(self) -> int:
        """Return a new descriptor of the network namespace of the container, which runs.

        Raises:
            SandboxUnavailableError: The container is gone, or its namespace cannot be opened.
        """
        with self._lock:
            if self._network is None:
                network = self._engine.open_network(self._name)
                # podman may have named a process that has ended since, and another one begun
                if self._client is None or not self._client.is_alive:
                    os.close(network)
                    raise SandboxUnavailableError(f"The container {self._name} has exited")
                self._network = network
            return os.dup(self._network)

    def kill(self) -> None:
        """Remove the container; the next command starts another one."""
        with self._lock:
            self._remove()

    def close(self) -> None:
        """Remove the container for good; idempotent."""
        with self._lock:
            self._is_closed = True
            if os.getpid() == self._owner:
                self._remove()

    def _start(self) -> RunnerClient:
        if self._workspace is None and self._name:
            raise SandboxUnavailableError(
                f"The container {self._name} has exited, and its workspace is lost;"
                " create another sandbox and import an archive"
            )
        self._close_network()  # of a container that has exited
        directory = self._make_directory()
        missing: set[str] = set()
        errors: list[str] = []
        for image, runtime in self._choices():
            if image in missing:
                continue
            try:
                return self._launch(image, runtime, directory)
            except _LaunchError as error:
                text = str(error)
            if engine.is_image_missing(text):
                missing.add(image)
                continue
            errors.append(text)
            if not any(each in text for each in _RUNTIME_ERRORS):
                break
        if errors:
            raise engine.engine_error("\n".join(errors))
        images = self._config.images
        pinned = next((each for each in images if find_pin(self._config, each)), None)
        raise engine.missing_image_error(images, pinned)

    def _launch(self, image: str, runtime: str | None, directory: str) -> RunnerClient:
        name = engine.new_name()
        process = self._engine.start(
            name,
            find_pin(self._config, image) or image,
            *_PROGRAM,
            runtime=runtime,
            workspace=self._workspace,
            readable=self._readable,
            directory=directory,
        )
        client = RunnerClient(process, _bundle(self._filter(), self._config.group_limits))
        try:
            facts = client.wait_until_ready(_START_TIMEOUT)
        except SandboxUnavailableError:
            text = client.error_text()
            if client.disconnect():
                self._engine.remove([name])
            raise _LaunchError(text) from None
        self._check(client, facts)
        _known_starts[self._config] = image, runtime
        self._discard()  # so that nothing is left if this process is killed
        self._name, self.image = name, image
        prune_once(self._config)
        return client

    def _make_directory(self) -> str:
        """Return a temporary directory, which is removed once the container runs."""
        self._discard()
        directory = tempfile.mkdtemp(prefix="wink-podman-")
        self._discard = weakref.finalize(self, shutil.rmtree, directory, ignore_errors=True)
        return directory

    def _filter(self) -> bytes:
        """Return the seccomp filter; a remote engine has only podman's own."""
        if self._config.is_remote or not is_supported():
            return b""
        return build_filter((*RULES, *socket_rules(NETWORK_FAMILIES)))

    def _choices(self) -> list[tuple[str, str | None]]:
        """Return the images with the OCI runtimes to try, those that have worked before first."""
        choices = [
            (image, runtime) for image in self._config.images for runtime in self._engine.runtimes()
        ]
        known = _known_starts.get(self._config)
        return sorted(choices, key=lambda each: each != known)

    def _check(self, client: RunnerClient, facts: Mapping[str, Any]) -> None:
        self.path = str(facts.get("path") or _PATH)
        self.limited = frozenset(map(str, facts.get("limited", ())))
        if not facts.get("is_writable"):
            client.disconnect()
            raise SandboxUnavailableError(
                f"User {facts.get('user')} of the container cannot write {engine.WORKSPACE};"
                " set `user` to the owner of the workspace, or use an image without that directory"
            )

    def _close_network(self) -> None:
        network, self._network = self._network, None
        if network is not None:
            os.close(network)

    def _remove(self) -> None:
        self._close_network()
        client, self._client = self._client, None
        if client is not None and client.disconnect():
            self._engine.remove([self._name])
        self._discard()


def _bundle(seccomp: bytes, limits: Mapping[str, int]) -> bytes:
    """Return the modules of the runner with its arguments, as `_BOOTSTRAP` reads them."""
    modules = [(f"{_SOURCES.name}{each}", "") for each in _PACKAGES]
    for each in _MODULES:
        source = _SOURCES.joinpath(*each.split(".")).with_suffix(".py")
        modules.append((f"{_SOURCES.name}.{each}", source.read_text(encoding="utf-8")))
    arguments = [engine.WORKSPACE, seccomp.hex(), dict(limits)]
    return encode_frame(json.dumps([modules, arguments]).encode())
