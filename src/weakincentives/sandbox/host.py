"""The engine that sandboxes on this machine share: start, time out, clean up, report.

Each sandbox has a temporary home directory and a minimal environment without secrets. What
confines a command is up to the subclass: `_confine` turns a command into the one to start.
"""

import os
import platform
import sys
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import cached_property
from pathlib import Path
from typing import Unpack

from weakincentives.filesystem import HostBacked, HostFilesystem
from weakincentives.posix import (
    Confinement,
    OpenDescriptor,
    is_owner_gone,
    owner_name,
    remove_entry,
)
from weakincentives.sandbox.base import CommandOptions, CommandSandbox, ConfinedCommand
from weakincentives.sandbox.cgroup import DEFAULT_SANDBOX_LIMITS, ControlGroups, SandboxLimits
from weakincentives.sandbox.command import PreparedCommand
from weakincentives.sandbox.launcher import Launcher
from weakincentives.sandbox.process import CommandProcess
from weakincentives.sandbox.protocol import SandboxUnavailableError
from weakincentives.sandbox.seccomp import is_supported
from weakincentives.sandbox.system_paths import (
    check_workspace,
    find_environment,
    map_search_path,
    readable_paths,
)

_PREFIX = "wink-sandbox-"


class CommandEnvironment:
    """Temporary directories for `HOME` and `TMPDIR`, and the variables every command gets."""

    def __init__(self) -> None:
        """Create the directories; `remove` or garbage collection deletes them.

        Those of processes that were killed are deleted by the next one.
        """
        _remove_leftovers()
        self._path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{owner_name()}."))
        self.remove: Callable[[], object] = weakref.finalize(self, _remove, self._path, os.getpid())
        for name in ("home", "tmp"):
            self.create_directory(name)

    def create_directory(self, name: str) -> Path:
        """Create one more directory, which is removed with the others."""
        path = self._path / name
        path.mkdir(mode=0o700)
        return path

    @property
    def home(self) -> str:
        """The home directory."""
        return str(self._path / "home")

    @property
    def temporary(self) -> str:
        """The directory for temporary files."""
        return str(self._path / "tmp")

    def variables(
        self, *, path: Sequence[str], home: str = "", temporary: str = ""
    ) -> dict[str, str]:
        """Return the environment variables; home and temporary files may appear elsewhere."""
        return {
            "PATH": os.pathsep.join(path),
            "HOME": home or self.home,
            "TMPDIR": temporary or self.temporary,
            "LANG": "C.UTF-8",
            "TERM": "dumb",
        }


def _remove_leftovers() -> None:
    """Remove the directories of this user whose process has ended."""
    with suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            owner = entry.name.removeprefix(_PREFIX).partition(".")[0]
            if not entry.name.startswith(_PREFIX) or not is_owner_gone(owner):
                continue
            with suppress(FileNotFoundError):
                if entry.stat(follow_symlinks=False).st_uid == os.geteuid():
                    _remove(Path(entry.path), os.getpid())


def _remove(path: Path, owner: int) -> None:
    if os.getpid() != owner:
        return  # this process is a fork of the owner
    with suppress(OSError):
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
        with OpenDescriptor(os.open(path, flags)) as directory:
            for name in os.listdir(directory):  # noqa: PTH208 # a descriptor has no path
                remove_entry(directory, name)
        path.rmdir()


class HostSandbox(CommandSandbox[CommandProcess]):
    """Runs commands on this machine; the base of the sandboxes that need no container."""

    _confines_changes = False  # whether commands reach files only by paths below the workspace

    def __init__(
        self,
        filesystem: HostFilesystem | str | os.PathLike[str],
        **options: Unpack[CommandOptions],
    ) -> None:
        """Run commands on the files of `filesystem`.

        Args:
            filesystem: The workspace, or the path of its directory.
            options: Those of `CommandSandbox`. The home and temporary files are in a directory
                that `close` removes. Python imports the copy where an editable install names the
                original.

        Raises:
            SandboxUnavailableError: The filesystem is read-only, which commands would ignore.
        """
        super().__init__(**options)
        self._owns_filesystem = isinstance(filesystem, str | os.PathLike)
        self._filesystem = open_workspace(filesystem)
        # commands start elsewhere, where a relative path would be another directory
        self._root = str(Path(self._filesystem.root).absolute())
        self._environment = CommandEnvironment()
        self._hook = self._create_import_hook()
        self._env = {**self._variables(), **self._add_import_hook(self._env)}
        self._launcher = self._create_launcher()

    @property
    def python(self) -> str:
        """The Python that commands can run."""
        return sys.executable

    @property
    def filesystem(self) -> HostFilesystem:
        """The workspace in which commands run."""
        return self._filesystem

    def close(self) -> None:
        """Stop all running commands and remove their temporary home; idempotent."""
        super().close()
        self._launcher.close()
        self._environment.remove()
        if self._owns_filesystem:
            self._filesystem.close()

    # --- what a subclass does differently ---

    def _create_launcher(self) -> Launcher:
        """Return the fork server for commands."""
        return Launcher()

    def _variables(self) -> dict[str, str]:
        """Return the variables that every command gets."""
        return self._environment.variables(path=os.get_exec_path())

    def _create_import_hook(self) -> Path | None:
        """Write what makes Python import the copy; return its directory, or None without one."""
        return None if self._original is None else self._write_import_hook(self._root)

    def _hook_path(self, directory: Path) -> str:
        """Return where commands find the directory of the import hook."""
        return str(directory)

    def _confine(self, command: PreparedCommand, cwd: str) -> ConfinedCommand:
        """Return the command to start instead of `command`, which is to run in `cwd`."""
        del cwd  # the process starts there anyway
        return ConfinedCommand(command)

    # --- shared steps ---

    def _write_import_hook(self, seen_at: str) -> Path | None:
        """Write a module that makes Python import the copy, which commands find at `seen_at`.

        A virtual environment outside the workspace may have an editable install of the original.
        It cannot be changed, so every Python that a command starts loads this module, found by
        `PYTHONPATH`: it makes the paths into the original lead to the copy.
        """
        if self._original is None:
            return None
        directory = self._environment.create_directory("python")
        text = f"ORIGINAL, COPY = {self._original!r}, {seen_at!r}\n{_IMPORT_HOOK}"
        (directory / "sitecustomize.py").write_text(text, encoding="utf-8")
        return directory

    def _add_import_hook(self, variables: Mapping[str, str]) -> dict[str, str]:
        if self._hook is None:
            return dict(variables)
        given = variables.get("PYTHONPATH")
        found = (self._hook_path(self._hook), *(() if given is None else (given,)))
        return {**variables, "PYTHONPATH": os.pathsep.join(found)}

    def _watch_files(self) -> AbstractContextManager[None]:
        return self._filesystem.changed_by_others(confined=self._confines_changes)

    def _launch(self, confined: ConfinedCommand) -> CommandProcess:
        how = confined.max_output, confined.listener
        with OpenDescriptor(self._filesystem.open_directory(confined.cwd)) as directory:
            try:
                return CommandProcess(self._launcher, confined.command, directory, *how)
            except OSError as error:
                raise SandboxUnavailableError(f"Cannot start a process: {error}") from error

    def _handle_leftovers(self) -> None:
        self._filesystem.invalidate()

    def _check(
        self, confined: ConfinedCommand, process: CommandProcess, *, timed_out: bool
    ) -> None:
        super()._check(confined, process, timed_out=timed_out)
        if not timed_out and not process.is_stopped:
            confined.check(process)


class LocalSandbox(HostSandbox):
    """Runs commands on the host as the current user. It isolates nothing.

    A command can read and change whatever this user can, inside the workspace and outside,
    and reach the network. Use it for code that you would run yourself. What it does provide:
    a timeout, bounded output, an environment without secrets, and cleanup of every
    process that a command started.
    """

    def _variables(self) -> dict[str, str]:
        root = self._root
        path = map_search_path(workspace=root, seen_at=root, original=self._original)
        environment = None if self._original is None else find_environment(root)
        own = [] if environment is None else [f"{root}/{environment}/bin"]
        return self._environment.variables(path=[*own, *path])


class IsolationOptions(CommandOptions, total=False):
    """The options of `IsolatedSandbox`."""

    limits: SandboxLimits


class IsolatedSandbox(HostSandbox):
    """Runs commands that cannot leave the workspace; the base of the sandboxes that isolate."""

    def __init__(
        self,
        filesystem: HostFilesystem | str | os.PathLike[str],
        *,
        limits: SandboxLimits = DEFAULT_SANDBOX_LIMITS,
        **options: Unpack[CommandOptions],
    ) -> None:
        """Run commands on the files of `filesystem`.

        Args:
            filesystem: The workspace, or the path of its directory.
            limits: Memory, processes and file size.
            options: Those of `CommandSandbox`. Where the sandbox can do that, commands find the
                workspace at the path of the original too, because virtual environments and caches
                refer to it; elsewhere Python imports the copy instead.

        Raises:
            SandboxUnavailableError: The host cannot isolate commands in this way, or the
                filesystem is read-only.
        """
        if not is_supported():
            raise SandboxUnavailableError(
                f"No seccomp filter for this machine: {platform.machine()}"
            )
        root = filesystem.root if isinstance(filesystem, HostBacked) else os.fspath(filesystem)
        check_workspace(root)
        self._limits = limits
        self._groups: ControlGroups | None = None
        super().__init__(filesystem, **options)

    @cached_property
    def _readable(self) -> tuple[str, ...]:
        """What commands may read, besides the directories of the system.

        It is found when the sandbox is made, before a command could change a path.
        """
        return readable_paths(self._granted, workspace=os.path.realpath(self._root))

    @property
    def limited(self) -> frozenset[str]:
        """What a control group limits for all commands together: `memory`, `pids`, or both."""
        return self._join_groups().controllers

    def close(self) -> None:
        """Stop all running commands and remove what the sandbox created; idempotent."""
        super().close()
        if self._groups is not None:
            self._groups.remove()

    def _limit(self) -> Confinement:
        """Return the resource limits of a command, where control groups do not limit it."""
        groups = self._join_groups()
        return Confinement(limits=self._limits.resources(without=groups.controllers))

    def _join_groups(self) -> ControlGroups:
        if self._groups is None:
            self._groups = ControlGroups(self._limits.groups())
            self._launcher.join(self._groups.open)
        return self._groups


def open_workspace(filesystem: HostFilesystem | str | os.PathLike[str]) -> HostFilesystem:
    """Return the filesystem of a sandbox; a path is opened.

    Raises:
        SandboxUnavailableError: It is read-only, which commands would ignore.
    """
    if isinstance(filesystem, str | os.PathLike):
        return HostFilesystem(filesystem)
    if not isinstance(filesystem, HostBacked):  # pyright: ignore[reportUnnecessaryIsInstance] # callers may be untyped
        raise TypeError(
            f"A sandbox on this machine needs a HostFilesystem or a path, not {filesystem!r}"
        )
    if filesystem.read_only:
        raise SandboxUnavailableError(
            f"Commands need a writable filesystem, and this one is read-only: {filesystem.root!r}"
        )
    return filesystem


# for any Python 3; an error in it would be printed by every command
_IMPORT_HOOK = r'''
import os
import sys


def moved(path):
    """Return the path in the copy for one in the original; any other value as it is."""
    if isinstance(path, str) and path.startswith("/"):
        for each in (path, os.path.realpath(path)):  # a link may lead to the original
            if (each + "/").startswith(ORIGINAL + "/"):
                there = COPY + each[len(ORIGINAL):]
                # an environment may not be in the copy; what a command has removed stays removed
                return there if os.path.exists(there) or "/site-packages" not in there else path
    return path


def move_items(values):
    """Change the paths in a list, or in the values of a dictionary."""
    keys = range(len(values)) if isinstance(values, list) else list(values)
    for key in keys:
        if isinstance(values[key], (dict, list)):
            move_items(values[key])
        else:
            values[key] = moved(values[key])


def move_attributes(owner):
    for value in list(getattr(owner, "__dict__", {}).values()):
        if isinstance(value, (dict, list)):
            move_items(value)


def missing_entries(directory):
    """Return the paths in .pth files that site has left out, because they do not exist here."""
    for name in sorted(os.listdir(directory)):
        if name.endswith(".pth"):
            with open(os.path.join(directory, name), errors="surrogateescape") as lines:
                for line in lines:
                    path = moved(line.rstrip())
                    if path != line.rstrip() and os.path.isdir(path):
                        yield path


def redirect():
    sys.path[:] = [each for each in sys.path if os.path.abspath(each) != HERE]
    move_items(sys.path)
    for directory in list(sys.path):
        if os.path.basename(directory) in ("site-packages", "dist-packages"):
            try:
                sys.path += [each for each in missing_entries(directory) if each not in sys.path]
            except OSError:
                pass
    # the finders of editable installs
    for name, module in list(sys.modules.items()):
        if "editable" in name:
            move_attributes(module)
    for finder in sys.meta_path:
        if "editable" in getattr(finder, "__module__", "") + type(finder).__module__:
            move_attributes(finder)


def load_next():
    """Import the sitecustomize module that this one hides, if there is one."""
    own = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize
    except ImportError as error:
        if getattr(error, "name", None) != "sitecustomize":
            raise
    finally:
        if own is not None:
            sys.modules.setdefault("sitecustomize", own)


HERE = os.path.dirname(os.path.abspath(__file__))
redirect()
load_next()
'''
