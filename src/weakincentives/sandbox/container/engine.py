"""The podman command line: connection, containers with their labels, and cleanup.

Nothing is contacted before a method is called. A failure of podman is a
`SandboxUnavailableError` that names the fix.
"""

import json
import os
import platform
import resource
import secrets
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weakincentives.sandbox.protocol import SandboxUnavailableError

WORKSPACE = "/workspace"
"""Where commands find the workspace."""

HOME = "/home/user"
"""The home directory of commands."""

DEFAULT_IMAGE = "localhost/weakincentives-python:latest"
"""The image that `build_image` makes."""

_OWNER, _MACHINE = "weakincentives.owner", "weakincentives.machine"
_TIMEOUT = 60.0  # seconds for a podman command
_MAX_EXCERPT = 2_000  # characters of podman's own errors
_RUNTIMES = ("runc", "crun")  # tried if the engine's default cannot start a container
_MAX_FILES, _MAX_PROCESSES = 1024, 4096  # resource limits; control groups are stricter
_FIXES = (
    ('"python3"', "use an image with Python 3.10 or later"),
    ("No such image", "build one with build_image(), or load one and name it as `image`"),
    ("image not known", "build one with build_image(), or load one and name it as `image`"),
    ("connection refused", "start the engine, or correct PODMAN_BASE_URL or PODMAN_CONNECTION"),
    ("cannot connect", "start the engine, or correct PODMAN_BASE_URL or PODMAN_CONNECTION"),
    ("unable to connect", "start the engine, or correct PODMAN_BASE_URL or PODMAN_CONNECTION"),
    ("cgroup", "set the limits to None, or use control groups of version 2"),
    ("subuid", "give the user a range in /etc/subuid and /etc/subgid"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodmanSandboxConfig:
    """How to reach the engine, and what a container may use.

    Args:
        image: The image; with Python 3.10 or later. Nothing is ever pulled.
        base_url: The URL of a remote engine.
        identity: The key file for a remote engine.
        connection: The name of a connection of `podman system connection`.
        runtime: The OCI runtime, such as `runc`; by default one that works is found.
        cpus: The number of CPUs; None for no limit.
        memory: Bytes of memory, swap included; None for no limit.
        processes: The number of processes; None for no limit.
        file_size: Bytes in a file that a command writes; None for no limit.
        temporary_size: Bytes in `/tmp`, and in the home directory.
        workspace_size: Bytes in the workspace, if the engine shares no directory.
        user: The user and group inside, as `1000:1000`; by default the owner of the workspace.
        program: The podman program.
        cache: The directory for the workspaces of sections; `~/.cache/weakincentives` by default.
    """

    image: str = DEFAULT_IMAGE
    base_url: str | None = None
    identity: str | None = None
    connection: str | None = None
    runtime: str | None = None
    cpus: float | None = 1.0
    memory: int | None = 1024**3
    processes: int | None = 256
    file_size: int | None = 8 * 1024**3
    temporary_size: int = 256 * 1024**2
    workspace_size: int = 512 * 1024**2
    user: str | None = None
    program: str = "podman"
    cache: str | None = None

    @classmethod
    def from_environment(
        cls, environment: Mapping[str, str] | None = None, **settings: Any
    ) -> "PodmanSandboxConfig":
        """Read `PODMAN_BASE_URL`, `PODMAN_IDENTITY`, `PODMAN_CONNECTION`, `WEAKINCENTIVES_CACHE`.

        Args:
            environment: The variables; those of this process by default.
            settings: Fields of the configuration, which take precedence.
        """
        variables = os.environ if environment is None else environment
        names = ("base_url", "identity", "connection")
        found: dict[str, Any] = {
            name: variables.get(f"PODMAN_{name.upper()}") or None for name in names
        }
        found["cache"] = variables.get("WEAKINCENTIVES_CACHE") or None
        return cls(**{**found, **settings})

    @property
    def cache_directory(self) -> Path:
        """The directory for the workspaces of sections."""
        return Path(self.cache) if self.cache else Path.home() / ".cache" / "weakincentives"

    @property
    def is_remote(self) -> bool:
        """Whether the engine may run on another machine."""
        return bool(self.base_url or self.connection)


class PodmanEngine:
    """Runs podman commands for one configuration."""

    def __init__(self, config: PodmanSandboxConfig) -> None:
        """Use `config`; podman is not called yet."""
        self._config = config

    def command(self, *arguments: str, runtime: str | None = None) -> list[str]:
        """Return a podman command line.

        Raises:
            SandboxUnavailableError: podman is not installed.
        """
        config = self._config
        program = shutil.which(config.program)
        if program is None:
            raise SandboxUnavailableError(
                f"{config.program} is not installed: install it with `apt install podman`"
            )
        identity = config.identity and str(Path(config.identity).absolute())
        options = [("--url", config.base_url), ("--identity", identity)]
        options += [("--connection", config.connection), ("--runtime", runtime)]
        given = [part for name, value in options if value for part in (name, value)]
        return [
            str(Path(program).absolute()),
            *(("--remote",) if config.is_remote else ()),
            *given,
            *arguments,
        ]

    def run(self, *arguments: str, timeout: float = _TIMEOUT) -> str:
        """Run a podman command; return its standard output.

        Raises:
            SandboxUnavailableError: It failed or timed out.
        """
        try:
            done = subprocess.run(
                self.command(*arguments, runtime=self._config.runtime),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise SandboxUnavailableError(
                f"podman {arguments[0]} timed out after {timeout:g} seconds"
            ) from None
        if done.returncode:
            raise engine_error(done.stderr.decode(errors="replace"))
        return done.stdout.decode(errors="replace")

    def runtimes(self) -> Sequence[str | None]:
        """Return the OCI runtimes to try in this order; None is the engine's default."""
        if self._config.runtime:
            return [self._config.runtime]
        if self._config.is_remote:
            return [None]
        return [None, *(each for each in _RUNTIMES if shutil.which(each))]

    def start(
        self,
        name: str,
        program: Sequence[str],
        *,
        workspace: str | None,
        runtime: str | None,
        directory: str,
    ) -> "subprocess.Popen[bytes]":
        """Start a container with pipes to its first process; return the podman process.

        Args:
            name: The name of the container.
            program: What to run in it.
            workspace: A directory to bind at `WORKSPACE`; None for an empty one inside.
            runtime: The OCI runtime; None for the engine's default.
            directory: Where podman runs: its monitor leaves a file there if memory runs out.
        """
        options = [*_FIXED_OPTIONS, "--name", name, *_labels()]
        options += self._limit_options() + self._mount_options(workspace)
        return subprocess.Popen(
            [*self.command("run", runtime=runtime), *options, self._config.image, *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=directory,
            start_new_session=True,  # an interrupt at the terminal is not for podman
            bufsize=0,
        )

    def remove(self, names: Iterable[str]) -> None:
        """Remove containers, whatever their state."""
        if found := list(names):
            self.run("rm", "--force", "--ignore", "--time", "0", "--volumes", "--", *found)

    def find_leftovers(self) -> list[str]:
        """Return the names of containers whose process on this machine is gone."""
        text = self.run("ps", "--all", "--filter", f"label={_OWNER}", "--format", "json")
        return [
            each["Names"][0] for each in json.loads(text or "[]") if _is_leftover(each["Labels"])
        ]

    def _limit_options(self) -> list[str]:
        config = self._config
        found: list[str] = []
        if config.cpus is not None:
            found += ["--cpus", f"{config.cpus:g}"]
        if config.memory is not None:
            found += ["--memory", str(config.memory), "--memory-swap", str(config.memory)]
        if config.processes is not None:
            found += ["--pids-limit", str(config.processes)]
        if config.file_size is not None:
            found += ["--ulimit", f"fsize={config.file_size}:{config.file_size}"]
        files, processes = _MAX_FILES, _MAX_PROCESSES
        if not config.is_remote:  # nobody may raise the limits of this process
            files = _bound_limit(resource.RLIMIT_NOFILE, files)
            processes = _bound_limit(resource.RLIMIT_NPROC, processes)
        found += ["--ulimit", f"nofile={files}:{files}"]
        return [*found, "--ulimit", f"nproc={processes}:{processes}"]

    def _mount_options(self, workspace: str | None) -> list[str]:
        limit = f"rw,exec,nosuid,nodev,notmpcopyup,mode=1777,size={self._config.temporary_size}"
        found = ["--tmpfs", f"/tmp:{limit}", "--tmpfs", f"{HOME}:{limit}"]
        if workspace is None:
            size = self._config.workspace_size
            options = f"rw,exec,nosuid,nodev,notmpcopyup,mode=0777,size={size}"
            return [
                *found,
                *("--tmpfs", f"{WORKSPACE}:{options}"),
                *("--user", self._config.user or "1000:1000"),
            ]
        if ":" in workspace:
            raise SandboxUnavailableError(
                f"podman cannot mount a path with a colon: {workspace!r}; rename the directory"
            )
        found += ["--volume", f"{workspace}:{WORKSPACE}:rw,nosuid,nodev"]
        return found + self._user_options(workspace)

    def _user_options(self, workspace: str) -> list[str]:
        """Return the options for a user who can write the workspace on both sides."""
        if self._config.user:
            return ["--user", self._config.user]
        if os.geteuid():
            return ["--userns", "keep-id"]
        found = Path(workspace).stat()
        return ["--user", f"{found.st_uid}:{found.st_gid}"]


_FIXED_OPTIONS = (
    *("--interactive", "--rm", "--pull", "never", "--network", "none", "--cap-drop", "ALL"),
    *("--security-opt", "no-new-privileges", "--read-only", "--read-only-tmpfs=false"),
    *("--http-proxy=false", "--log-driver", "none", "--hostname", "sandbox", "--workdir", "/"),
)


def new_name() -> str:
    """Return a name for a container of this process."""
    return f"wink-{os.getpid()}-{secrets.token_hex(4)}"


def engine_error(text: str) -> SandboxUnavailableError:
    """Return the error for what podman printed, with the fix if it is known."""
    shown = text.strip()[-_MAX_EXCERPT:] or "no message"
    lower = shown.lower()
    for pattern, fix in _FIXES:
        if pattern.lower() in lower:
            return SandboxUnavailableError(f"podman failed: {shown}; {fix}")
    return SandboxUnavailableError(f"podman failed: {shown}")


def prune_containers(config: PodmanSandboxConfig | None = None) -> list[str]:
    """Remove containers whose processes on this machine are gone; return their names.

    Raises:
        SandboxUnavailableError: podman failed.
    """
    engine = PodmanEngine(config or PodmanSandboxConfig.from_environment())
    found = engine.find_leftovers()
    engine.remove(found)
    return found


def _labels() -> list[str]:
    owner, machine = f"{_OWNER}={_identity(os.getpid())}", f"{_MACHINE}={platform.node()}"
    return ["--label", owner, "--label", machine]


def _is_leftover(labels: Mapping[str, str]) -> bool:
    if labels.get(_MACHINE) != platform.node():
        return False  # nobody here knows whether its owner runs
    owner = labels.get(_OWNER, "")
    pid = owner.partition(":")[0]
    return not pid.isdigit() or _identity(int(pid)) != owner


def _identity(pid: int) -> str:
    """Return what identifies a process for good: its ID, its start time and the boot."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return str(pid) if _is_running(pid) else ""
    return f"{pid}:{text[text.rindex(b')') + 2 :].split()[19].decode()}:{boot}"


def _is_running(pid: int) -> bool:
    with suppress(OSError):
        os.kill(pid, 0)
        return True
    return False


def _bound_limit(kind: int, wanted: int) -> int:
    _, hard = resource.getrlimit(kind)
    return wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
