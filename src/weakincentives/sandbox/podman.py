"""The Podman sandbox: commands in a container, through a runner that stays inside.

The first command starts the container; later ones reuse it. A container has no network, no
capabilities, a read-only root, and limits for CPU, memory and processes. It is removed by
`close`, at the exit of this process, and also if this process is killed.

With an allow-list, a proxy on this machine connects commands to the hosts of the list: each
command has a port of that proxy on the loopback interface of the container.
"""

import os
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Unpack

from weakincentives.filesystem import HostBacked, HostFilesystem, normalize_path
from weakincentives.posix import OpenDescriptor
from weakincentives.sandbox.base import CommandOptions, CommandSandbox, ConfinedCommand
from weakincentives.sandbox.command import PreparedCommand
from weakincentives.sandbox.container import (
    HOME,
    Container,
    ContainerCommand,
    ContainerFilesystem,
    PodmanSandboxConfig,
    RunnerClient,
    configure,
)
from weakincentives.sandbox.host import open_workspace
from weakincentives.sandbox.launcher import Launcher
from weakincentives.sandbox.protocol import ConnectionListener, SandboxUnavailableError
from weakincentives.sandbox.proxy import ProxyPort
from weakincentives.sandbox.proxy_connection import ProxySettings
from weakincentives.sandbox.system_paths import check_workspace


class PodmanSandbox(CommandSandbox[ContainerCommand]):
    """Runs commands in a container of podman."""

    def __init__(
        self,
        filesystem: HostFilesystem | str | os.PathLike[str] | None = None,
        *,
        config: PodmanSandboxConfig | None = None,
        allow_hosts: Iterable[str] = (),
        on_connection: ConnectionListener | None = None,
        untrusted: Iterable[str | os.PathLike[str]] = (),
        **options: Unpack[CommandOptions],
    ) -> None:
        """Run commands on the files of `filesystem`; podman is not called yet.

        Args:
            filesystem: The workspace, or the path of its directory; None for a workspace inside
                the container, which is the only way with a remote engine.
            config: The engine, the image and the limits; by default from the environment.
            allow_hosts: Hosts that commands may connect to by HTTP and HTTPS, such as
                `example.com`, `*.example.com` or `example.com:8443`; by default none.
            on_connection: Called with each connection when it has ended, in another thread.
            untrusted: Directories in which podman is not looked for, besides the workspace and
                the original.
            options: Those of `CommandSandbox`. Programs come from the image, and do not know the
                original.

        Raises:
            SandboxUnavailableError: The filesystem is read-only, which commands would ignore, or
                the engine is remote and cannot use it, or the hosts.
            ValueError: A host is invalid.
        """
        super().__init__(**options)
        self._proxy = ProxySettings.create(allow_hosts, on_connection)
        self._launcher = Launcher()
        self._config = configure(config)
        if self._config.is_remote:
            _check_remote(filesystem, self.allowed_hosts)
        self._owns_filesystem = not isinstance(filesystem, HostBacked)
        self._host_files = None if filesystem is None else open_workspace(filesystem)
        self._container = self._create_container(untrusted)
        self._inner_files = ContainerFilesystem(self._container)

    @property
    def config(self) -> PodmanSandboxConfig:
        """The engine, the image and the limits."""
        return self._config

    @property
    def allowed_hosts(self) -> tuple[str, ...]:
        """The hosts that commands may connect to."""
        return () if self._proxy is None else tuple(map(str, self._proxy.allowed.rules))

    @property
    def container_name(self) -> str | None:
        """The name of the container; None if it does not run."""
        return self._container.name

    @property
    def image(self) -> str:
        """The image of the container; until it has started, the one that is configured."""
        return self._container.image

    @property
    def limited(self) -> frozenset[str]:
        """What a control group limits for all commands together: `memory`, `pids`, or both.

        Asking starts the container.
        """
        self._container.connect()
        return self._container.limited

    @property
    def python(self) -> str:
        """The Python that commands can run."""
        return "python3"

    @property
    def filesystem(self) -> HostFilesystem | ContainerFilesystem:
        """The workspace in which commands run."""
        return self._inner_files if self._host_files is None else self._host_files

    def close(self) -> None:
        """Stop all running commands and remove the container; idempotent."""
        super().close()
        if self._owns_filesystem:
            with suppress(SandboxUnavailableError):  # the container is gone
                self.filesystem.close()
        self._container.close()
        self._launcher.close()

    def _create_container(self, untrusted: Iterable[str | os.PathLike[str]]) -> Container:
        root = None
        if self._host_files is not None:
            check_workspace(self._host_files.root)
            root = str(Path(self._host_files.root).absolute())  # podman runs elsewhere
        excluded = [*untrusted, *(each for each in (root, self._original) if each is not None)]
        return Container(self._config, root, readable=self._granted, untrusted=excluded)

    def _confine(self, command: PreparedCommand, cwd: str) -> "_ContainedCommand":
        """Make sure that the container runs."""
        if self._host_files is not None:
            os.close(self._host_files.open_directory(cwd))
        client = self._container.connect()
        port = self._open_port()
        proxy = {} if port is None else port.variables
        defaults = {"PATH": self._container.path, "HOME": HOME, "TMPDIR": "/tmp"}
        language = {"LANG": "C.UTF-8", "TERM": "dumb"}
        variables = {**proxy, **defaults, **language, **command.env}
        return _ContainedCommand(replace(command, env=variables), client, port)

    def _open_port(self) -> ProxyPort | None:
        if self._proxy is None:
            return None
        with OpenDescriptor(self._container.open_network()) as network:
            return ProxyPort(self._launcher, self._proxy, (network,))

    def _watch_files(self) -> AbstractContextManager[None]:
        files = self._host_files  # those in the container trust nothing
        return nullcontext() if files is None else files.changed_by_others()

    def _launch(self, confined: ConfinedCommand) -> ContainerCommand:
        assert isinstance(confined, _ContainedCommand)
        how = normalize_path(confined.cwd), confined.max_output, confined.listener
        return ContainerCommand(confined.client, confined.command, *how)

    def _handle_leftovers(self) -> None:
        self._container.kill()

    def _check(
        self, confined: ConfinedCommand, process: ContainerCommand, *, timed_out: bool
    ) -> None:
        process.check()
        if process.report.error_number < 0:
            self.filesystem.list(confined.cwd)  # raises the reason
        super()._check(confined, process, timed_out=timed_out)


def _check_remote(filesystem: object, hosts: Sequence[str]) -> None:
    """Make sure that a remote engine needs nothing of this machine."""
    if filesystem is not None:
        raise SandboxUnavailableError(
            "A remote engine shares no directory with this machine: unset PODMAN_BASE_URL and"
            " PODMAN_CONNECTION to use the engine of this machine, or leave `filesystem` out"
            " and copy files with `sandbox.filesystem.hydrate_from_host`"
        )
    if hosts:
        raise SandboxUnavailableError(
            f"A remote engine cannot allow {', '.join(hosts)}: the proxy runs"
            " on this machine; use a local engine, or name no hosts"
        )


class _ContainedCommand(ConfinedCommand):
    """A command, the runner that is to start it, and the port of its proxy."""

    def __init__(
        self, command: PreparedCommand, client: RunnerClient, port: ProxyPort | None
    ) -> None:
        super().__init__(command, port)
        self.client = client
