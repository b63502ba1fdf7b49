"""A container that starts when it is needed, and the choice of an OCI runtime that works."""

import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from weakincentives.sandbox.container.client import BOOTSTRAP, RunnerClient
from weakincentives.sandbox.container.engine import (
    WORKSPACE,
    PodmanEngine,
    PodmanSandboxConfig,
    engine_error,
    new_name,
)
from weakincentives.sandbox.protocol import SandboxUnavailableError
from weakincentives.sandbox.seccomp import (
    NETWORK_FAMILIES,
    RULES,
    build_filter,
    is_supported,
    socket_rules,
)

_START_TIMEOUT = 60.0  # seconds
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PROGRAM = ("python3", "-I", "-S", "-X", "utf8", "-c", BOOTSTRAP)
# what an OCI runtime prints if it cannot start any container on this host
_RUNTIME_ERRORS = ("OCI runtime", "crun", "cgroups in hybrid mode", "setrlimit", "runc")

_known_runtimes: dict[PodmanSandboxConfig, str | None] = {}  # those that have started a container


class Container:
    """A container that is started when it is needed, with the runner inside; thread-safe."""

    def __init__(self, config: PodmanSandboxConfig, workspace: str | None) -> None:
        """Start nothing yet; `workspace` is the host's directory to bind, if any."""
        self._config = config
        self._engine = PodmanEngine(config)
        self._workspace = workspace
        self._lock = threading.Lock()
        self._client: RunnerClient | None = None
        self._name = ""
        self._owner = os.getpid()
        self._is_closed = False
        self._discard: Callable[[], object] = lambda: None
        self.path: str = _PATH

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
            SandboxUnavailableError: There is no container.
        """
        return self.connect().call(operation, data=data, **request)

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
        directory = self._make_directory()
        errors: list[str] = []
        for runtime in self._runtimes():
            name = new_name()
            process = self._engine.start(
                name,
                _PROGRAM,
                workspace=self._workspace,
                runtime=runtime,
                directory=directory,
            )
            client = RunnerClient(process, WORKSPACE, self._filter())
            try:
                facts = client.wait_until_ready(_START_TIMEOUT)
            except SandboxUnavailableError:
                errors.append(client.error_text())
                if client.disconnect():
                    self._engine.remove([name])
                if not any(each in errors[-1] for each in _RUNTIME_ERRORS):
                    break
            else:
                self._name, self.path = name, str(facts.get("path") or _PATH)
                self._check(client, facts)
                _known_runtimes[self._config] = runtime
                self._discard()  # so that nothing is left if this process is killed
                return client
        raise engine_error("\n".join(errors))

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

    def _runtimes(self) -> list[str | None]:
        """Return the OCI runtimes to try, the one that has worked before first."""
        found = list(self._engine.runtimes())
        if self._config in _known_runtimes:
            found.sort(key=lambda each: each != _known_runtimes[self._config])
        return found

    def _check(self, client: RunnerClient, facts: Mapping[str, Any]) -> None:
        if not facts.get("is_writable"):
            client.disconnect()
            raise SandboxUnavailableError(
                f"User {facts.get('user')} of the container cannot write {WORKSPACE};"
                " set `user` to the owner of the workspace, or use an image without that directory"
            )

    def _remove(self) -> None:
        client, self._client = self._client, None
        if client is not None and client.disconnect():
            self._engine.remove([self._name])
        self._discard()
