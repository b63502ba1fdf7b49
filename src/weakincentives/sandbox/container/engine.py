"""The podman command line: connection, containers with their labels, and cleanup.

Nothing is contacted before a method is called. A failure of podman is a
`SandboxUnavailableError` that names the fix.
"""

import csv
import io
import os
import platform
import re
import resource
import secrets
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from weakincentives.posix import owner_name
from weakincentives.sandbox.protocol import WORKSPACE, SandboxUnavailableError
from weakincentives.sandbox.system_paths import find_program, trusted_search_path

HOME = "/home/user"
"""The home directory of commands."""

DEFAULT_IMAGE = "docker.io/library/python:3.12-slim"
"""The image that `pull_image` gets from a registry."""

BUILT_IMAGE = "localhost/weakincentives-python:latest"
"""The image that `build_image` makes; it stands in for `DEFAULT_IMAGE` where that is missing."""

OWNER_LABEL, MACHINE_LABEL = "weakincentives.owner", "weakincentives.machine"
_TIMEOUT = 60.0  # seconds for a podman command
_MAX_EXCERPT = 2_000  # characters of podman's own errors
_RUNTIMES = ("runc", "crun")  # tried if the engine's default cannot start a container
_MAX_FILES, _MAX_PROCESSES = 1024, 4096  # resource limits; control groups are stricter
_FIXES = (
    (
        "subuid",
        "give your user a range of IDs: `sudo usermod --add-subuids 100000-165535"
        " --add-subgids 100000-165535 $USER`",
    ),
    ('"python3"', "use an image with Python 3.10 or later"),
    *(
        (problem, "start the engine, or correct PODMAN_BASE_URL or PODMAN_CONNECTION")
        for problem in ("connection refused", "cannot connect", "unable to connect")
    ),
    (
        "hybrid mode",
        "install runc, which works with control groups of both versions: `apt install runc`; it is"
        " then used unless `runtime` names another",
    ),
    ("cgroup", "set the limits to None, or use control groups of version 2"),
)
_MISSING_IMAGE = ("image not known", "no such image")
_USER = 1000
_NOBODY = 65534
_USERS = re.compile(r"(\d{1,5})(?::(\d{1,5}))?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodmanSandboxConfig:
    """How to reach the engine, and what a container may use.

    Args:
        image: The image; with Python 3.10 or later. It is not pulled. If the default one is
            missing, `BUILT_IMAGE` is used.
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
        user: The numbers of the user and the group inside, as `1000:1000`; by default those of
            the owner of the workspace, or 1000 if that is root. Outside it is the owner.
        program: The podman program.
        cache: The directory for the workspaces of sections; `~/.cache/weakincentives` by default.

    Raises:
        ValueError: `user` is not a number, or a number too large.
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

    def __post_init__(self) -> None:
        """Check the user."""
        if self.user is not None and max(self.user_numbers) > _NOBODY:
            raise _user_error(self.user)

    def with_environment(
        self, environment: Mapping[str, str] | None = None
    ) -> "PodmanSandboxConfig":
        """Return it with fields that have their default read from the environment.

        The connection is in `PODMAN_BASE_URL` or `PODMAN_CONNECTION`, and `PODMAN_IDENTITY`;
        the first two are ignored if either field is set. `WEAKINCENTIVES_IMAGE` is the image,
        `WEAKINCENTIVES_CACHE` the directory for workspaces.
        """
        variables = os.environ if environment is None else environment
        names = {"identity": "PODMAN_IDENTITY", "cache": "WEAKINCENTIVES_CACHE"}
        if self.base_url is None and self.connection is None:
            names |= {"base_url": "PODMAN_BASE_URL", "connection": "PODMAN_CONNECTION"}
        found = {
            field: value
            for field, name in names.items()
            if getattr(self, field) is None and (value := variables.get(name))
        }
        if self.image == DEFAULT_IMAGE and (image := variables.get("WEAKINCENTIVES_IMAGE")):
            found["image"] = image
        return replace(self, **found)

    @property
    def user_numbers(self) -> tuple[int, int]:
        """The user and the group inside; the group has the user's number if it is not given."""
        if self.user is None:
            return _USER, _USER
        found = _USERS.fullmatch(self.user)
        if found is None:
            raise _user_error(self.user)
        return int(found[1]), int(found[2] or found[1])

    @property
    def cache_directory(self) -> Path:
        """The directory for the workspaces of sections."""
        return Path(self.cache) if self.cache else Path.home() / ".cache" / "weakincentives"

    @property
    def group_limits(self) -> dict[str, int]:
        """The limits for all commands together, by control group."""
        limits = {"memory": self.memory, "pids": self.processes}
        return {name: value for name, value in limits.items() if value is not None}

    @property
    def images(self) -> tuple[str, ...]:
        """The images to try in this order."""
        return (DEFAULT_IMAGE, BUILT_IMAGE) if self.image == DEFAULT_IMAGE else (self.image,)

    @property
    def is_remote(self) -> bool:
        """Whether the engine may run on another machine."""
        return bool(self.base_url or self.connection)


class PodmanEngine:
    """Runs podman commands for one configuration."""

    def __init__(
        self, config: PodmanSandboxConfig, untrusted: Iterable[str | os.PathLike[str]] = ()
    ) -> None:
        """Use `config`; podman is not called yet.

        Args:
            config: The engine.
            untrusted: Directories in which neither we look for podman nor podman for its helpers.
        """
        self._config = config
        self._untrusted = tuple(untrusted)

    def command(self, *arguments: str, runtime: str | None = None) -> list[str]:
        """Return a podman command line.

        Raises:
            SandboxUnavailableError: podman is not installed.
        """
        config = self._config
        program = self._find(config.program)
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
                env=self._environment(),
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
        return [None, *(each for each in _RUNTIMES if self._find(each))]

    def start(
        self,
        name: str,
        *program: str,
        runtime: str | None,
        workspace: str | None,
        readable: Iterable[str],
        directory: str,
    ) -> "subprocess.Popen[bytes]":
        """Start a container with pipes to its first process; return the podman process.

        Args:
            name: The name of the container.
            program: The image, and what to run in it.
            runtime: The OCI runtime; None for the engine's default.
            workspace: A directory to bind at `WORKSPACE`; None for an empty one inside.
            readable: Other paths to bind, read-only, where they are on the host.
            directory: Where podman runs: its monitor leaves a file there if memory runs out.
        """
        options = [*_FIXED_OPTIONS, "--name", name, *_labels()]
        options += self._limit_options() + self._mount_options(workspace)
        options += [part for each in readable for part in _bind(each, each, "ro")]
        return subprocess.Popen(
            [*self.command("run", runtime=runtime), *options, *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=directory,
            env=self._environment(),
            start_new_session=True,  # an interrupt at the terminal is not for podman
            bufsize=0,
        )

    def _find(self, program: str) -> str | None:
        """Return the path of a program; one that is given with its directory is used as it is."""
        if "/" in program:
            return shutil.which(program)
        return find_program(program, self._untrusted)

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "PATH": trusted_search_path(self._untrusted)}

    def open_network(self, name: str) -> int:
        """Return a descriptor of the network namespace of a container on this machine.

        Raises:
            SandboxUnavailableError: The container is gone, or its namespace cannot be opened.
        """
        pid = self.run("inspect", "--format", "{{.State.Pid}}", "--", name).strip()
        try:
            return os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise SandboxUnavailableError(
                f"The network of the container {name} cannot be opened: {error.strerror}"
            ) from error

    def remove(self, names: Iterable[str]) -> None:
        """Remove containers, whatever their state."""
        if found := list(names):
            self.run("rm", "--force", "--ignore", "--time", "0", "--volumes", "--", *found)

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
            user, group = self._config.user_numbers
            found += ["--tmpfs", f"{WORKSPACE}:{options}"]
            apart = () if user and group else (_map_ids(_NOBODY, 0), _map_ids(_NOBODY, 0))
            return found + _user_options(user, group, *apart)
        return found + _bind(workspace, WORKSPACE, "rw") + self._owner_options(workspace)

    def _owner_options(self, workspace: str) -> list[str]:
        """Return the options for a user who is the owner of the workspace outside.

        Raises:
            SandboxUnavailableError: The user is root on both sides.
        """
        user, group = self._config.user_numbers
        if os.geteuid():
            if self._config.user is None:
                return ["--userns", "keep-id"]
            # podman maps root of the container to this user by itself
            keep = ["--userns", f"keep-id:uid={user},gid={group or user}"] if user else []
            return [*_user_options(user, group), *keep]
        found = Path(workspace).stat()
        owner = found.st_uid, found.st_gid
        if self._config.user is None and found.st_uid:
            user, group = owner
        if not user and not found.st_uid:
            raise SandboxUnavailableError(
                f"User {self._config.user!r} would be root on this machine, since root owns the"
                " workspace; omit `user`, or choose other numbers, such as '1000:1000'"
            )
        if (user, group) == owner and group:
            return _user_options(user, group)
        maps = _map_ids(user, found.st_uid), _map_ids(group or _NOBODY, found.st_gid)
        return _user_options(user, group, *maps)


def configure(config: PodmanSandboxConfig | None) -> PodmanSandboxConfig:
    """Return a configuration with what it leaves to the environment."""
    return (config or PodmanSandboxConfig()).with_environment()


def _user_error(user: str) -> ValueError:
    return ValueError(
        f"user must be numbers up to {_NOBODY}, as in '1000' or '1000:1000': {user!r}"
    )


def _user_options(
    user: int, group: int, users: Sequence[str] = (), groups: Sequence[str] = ()
) -> list[str]:
    """Return the options for a user and a group inside, and for a user namespace with maps."""
    maps = [*(("--uidmap", each) for each in users), *(("--gidmap", each) for each in groups)]
    return ["--user", f"{user}:{group}", *(part for each in maps for part in each)]


def _map_ids(inside: int, outside: int) -> list[str]:
    """Return a map in which `inside` is `outside`, and 0 is another number than 0.

    Other numbers are the same on both sides, and both have the same ones, because podman 4.3
    cannot mount an image with a range that lies elsewhere.
    """
    if outside == 0:
        moved = {_NOBODY: inside, 0: _NOBODY, inside: 0}
    elif inside != outside:
        moved = {outside: 0, 0: inside, inside: outside}
    else:
        other = _NOBODY if inside != _NOBODY else _NOBODY - 1
        moved = {0: other, other: 0}
    last = max(_NOBODY, outside)
    found: list[str] = []
    start = 0
    for each in sorted(moved):
        if start < each:
            found.append(f"{start}:{start}:{each - start}")
        found.append(f"{each}:{moved[each]}:1")
        start = each + 1
    return [*found, *([f"{start}:{start}:{last + 1 - start}"] if start <= last else [])]


# podman leaves these to root, who is outside what user 1000 is in the container
_MASKED = (
    *("/proc/dynamic_debug", "/proc/kpagecgroup", "/proc/kpagecount", "/proc/kpageflags"),
    *("/proc/pagetypeinfo", "/proc/pressure", "/proc/slabinfo", "/proc/vmallocinfo"),
)
_FIXED_OPTIONS = (
    *("--interactive", "--rm", "--pull", "never", "--network", "none", "--cap-drop", "ALL"),
    # SELinux would keep commands out of the workspace, unless all of its files were labelled
    *(
        "--security-opt",
        "no-new-privileges",
        "--security-opt",
        "label=disable",
        "--security-opt",
        f"mask={':'.join(_MASKED)}",
        "--read-only",
        "--read-only-tmpfs=false",
    ),
    *("--http-proxy=false", "--log-driver", "none", "--hostname", "sandbox", "--workdir", "/"),
)


def new_name() -> str:
    """Return a name for a container of this process."""
    return f"wink-{os.getpid()}-{secrets.token_hex(4)}"


def _bind(source: str, target: str, mode: str) -> list[str]:
    """Return the option for a bind mount; its value is a CSV record, so any path can be named."""
    record = io.StringIO()
    fields = ["type=bind", f"src={source}", f"dst={target}", mode, "nosuid", "nodev"]
    csv.writer(record, quoting=csv.QUOTE_ALL, lineterminator="").writerow(fields)
    return ["--mount", record.getvalue()]


def is_image_missing(text: str) -> bool:
    """Return whether podman says that the engine does not have the image."""
    return any(each in text.lower() for each in _MISSING_IMAGE)


def missing_image_error(
    images: Sequence[str], pinned: str | None = None
) -> SandboxUnavailableError:
    """Return the error for images of which the engine has none.

    Args:
        images: Their names.
        pinned: The one of them that was pulled or built before.
    """
    if pinned is not None:
        again = "build-image" if pinned == BUILT_IMAGE else f"pull-image {pinned}"
        return SandboxUnavailableError(
            f"The engine no longer has the image {pinned!r} as it was pulled or built: get it"
            f" again with `wink sandbox {again}`"
        )
    name = "" if images[0] == DEFAULT_IMAGE else f" {images[0]}"
    return SandboxUnavailableError(
        f"The engine has no image {' or '.join(map(repr, images))}: get it with"
        f" `wink sandbox pull-image{name}`, or make one without a registry with"
        " `wink sandbox build-image`"
    )


def engine_error(text: str) -> SandboxUnavailableError:
    """Return the error for what podman printed, with the fix if it is known."""
    shown = text.strip()[-_MAX_EXCERPT:] or "no message"
    lower = shown.lower()
    for pattern, fix in _FIXES:
        if pattern.lower() in lower:
            return SandboxUnavailableError(f"podman failed: {shown}; {fix}")
    return SandboxUnavailableError(f"podman failed: {shown}")


def _labels() -> list[str]:
    owner, machine = f"{OWNER_LABEL}={owner_name()}", f"{MACHINE_LABEL}={platform.node()}"
    return ["--label", owner, "--label", machine]


def _bound_limit(kind: int, wanted: int) -> int:
    _, hard = resource.getrlimit(kind)
    return wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
