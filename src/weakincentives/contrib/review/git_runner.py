"""Running the program `git` in a repository that somebody else may have written.

Git runs what a repository's configuration names. So no command gets a hook, a pager, a file system
monitor or a transport, and nothing is fetched. A command that does not end is stopped.
"""

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from weakincentives.errors import WinkError
from weakincentives.sandbox.system_paths import trusted_search_path

_SETTINGS: Mapping[str, str] = {
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "core.splitIndex": "false",
    "core.untrackedCache": "false",
    "safe.bareRepository": "explicit",
    "submodule.recurse": "false",
}
_VARIABLES: Mapping[str, str] = {
    # a partial clone would fetch what is missing, with the program that its configuration names
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}
# set by git for its hooks and aliases; they would lead to another repository or index
_LOCAL_VARIABLES = frozenset(
    {
        "GIT_DIR",
        "GIT_WORK_TREE",
        "GIT_INDEX_FILE",
        "GIT_PREFIX",
        "GIT_COMMON_DIR",
        "GIT_OBJECT_DIRECTORY",
        "GIT_ALTERNATE_OBJECT_DIRECTORIES",
        "GIT_NAMESPACE",
        "GIT_SHALLOW_FILE",
        "GIT_GRAFT_FILE",
    }
)
_COUNT = "GIT_CONFIG_COUNT"
_GRACE = 5.0  # seconds in which git removes its locks


class GitError(WinkError, RuntimeError):
    """A git command failed."""


class GitTimeoutError(GitError):
    """A git command did not end in time."""


@dataclass(frozen=True, slots=True)
class GitRunner:
    """Runs git in a directory whose configuration is not trusted."""

    program: str
    directory: Path
    environment: Mapping[str, str]
    """The environment variables of the user."""
    variables: Mapping[str, str]
    """Variables to set besides, such as that of another index."""
    settings: Mapping[str, str]
    """Settings that take precedence over every configuration file."""
    seconds: float
    """The time limit of a command."""

    def run(self, *arguments: str, data: bytes = b"", codes: Sequence[int] = (0,)) -> bytes:
        """Run git; return what it prints.

        Raises:
            GitTimeoutError: It does not end in time.
            GitError: It exits with none of `codes`.
            OSError: It cannot be started.
        """
        process = subprocess.Popen(
            [self.program, "--no-pager", *arguments],
            cwd=self.directory,
            env=self._variables(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        with process:
            try:
                output, errors = process.communicate(data, self.seconds)
            except subprocess.TimeoutExpired:
                raise self._timeout(arguments[0]) from None
            finally:
                _stop(process)
        if process.returncode not in codes:
            reason = errors.decode(errors="replace").strip() or f"exit code {process.returncode}"
            raise GitError(f"git {arguments[0]} failed: {' '.join(reason.split())}")
        return output

    def _timeout(self, command: str) -> GitTimeoutError:
        return GitTimeoutError(
            f"git {command} did not end within {self.seconds:g} seconds and was stopped; find out"
            f" what it waits for in {str(self.directory)!r}, such as a slow disk, a filter or a"
            " program that signs"
        )

    def _variables(self) -> dict[str, str]:
        """Return the environment; settings are in it, since an option cannot have every name."""
        found = {
            name: self.environment[name] for name in self.environment.keys() - _LOCAL_VARIABLES
        }
        given = found.get(_COUNT, "")
        first = int(given) if given.isdecimal() else 0
        settings = {**_SETTINGS, **self.settings}
        numbered = dict(enumerate(settings.items(), start=first))
        return {
            **found,
            # what git starts is not looked for in the repository either
            "PATH": trusted_search_path([self.directory]),
            **_VARIABLES,
            **{f"GIT_CONFIG_KEY_{number}": name for number, (name, _) in numbered.items()},
            **{f"GIT_CONFIG_VALUE_{number}": value for number, (_, value) in numbered.items()},
            _COUNT: str(first + len(settings)),
            **self.variables,
        }


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """End a command that still runs; git removes its locks if it is asked to end."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
