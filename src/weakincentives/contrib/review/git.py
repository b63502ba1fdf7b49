"""The program `git` in a repository of the user that somebody else may have written.

Git runs what a repository's configuration names. So no command gets a hook, a pager, a file system
monitor or a transport, nothing is fetched, and no program runs that only the repository's own
configuration names. A command that does not end is stopped. The index that commands change is a
temporary one unless the real one is asked for.
"""

import os
import re
import subprocess
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from weakincentives.contrib.review.records import GitEntry, IndexChange
from weakincentives.errors import WinkError
from weakincentives.posix import parents_of, write_all
from weakincentives.sandbox import find_program, trusted_search_path

GITLINK = "160000"
_SETTINGS = {"i18n.commitEncoding": "UTF-8"}
_SECONDS = 120.0  # for each command
_SIGNING_SECONDS = 600.0  # a person may have to type a passphrase
_UNDER_WAY = {
    "MERGE_HEAD": "A merge",
    "CHERRY_PICK_HEAD": "A cherry-pick",
    "REVERT_HEAD": "A revert",
    "rebase-merge": "A rebase",
    "rebase-apply": "A rebase",
}
_SIGNING_PROGRAM = re.compile(r"gpg\..*(?:program|command)")
_HOOKS = ("pre-commit", "prepare-commit-msg", "commit-msg", "post-commit")
_CONVERSIONS = ("text", "eol", "crlf", "filter", "ident", "working-tree-encoding")
_SAFE_SETTINGS: Mapping[str, str] = {
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
        *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR"),
        *("GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_NAMESPACE"),
        *("GIT_SHALLOW_FILE", "GIT_GRAFT_FILE"),
    }
)
_COUNT = "GIT_CONFIG_COUNT"
_GRACE = 5.0  # seconds in which git removes its locks


class CommitError(WinkError, RuntimeError):
    """The changes cannot become a commit, or a git command failed."""


class GitTimeoutError(CommitError):
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
            CommitError: It exits with none of `codes`.
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
            raise CommitError(f"git {arguments[0]} failed: {' '.join(reason.split())}")
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
        settings = {**_SAFE_SETTINGS, **self.settings}
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


@dataclass(frozen=True, slots=True)
class GitRepository:
    """The repository that a directory is in."""

    top: Path
    """The top of the working tree."""
    prefix: str
    """The directory relative to the top; empty, or with a slash at its end."""
    git_dir: Path
    runner: GitRunner

    def run(self, *arguments: str, data: bytes = b"", codes: Sequence[int] = (0,)) -> bytes:
        """Run git at the top of the working tree; return what it prints."""
        seconds = _SIGNING_SECONDS if "-S" in arguments else _SECONDS
        runner = replace(self.runner, directory=self.top, seconds=seconds)
        return runner.run(*arguments, data=data, codes=codes)

    def text(self, *arguments: str, codes: Sequence[int] = (0,)) -> str:
        """Run git; return what it prints, without white space around it."""
        return os.fsdecode(self.run(*arguments, codes=codes)).strip()

    def setting(self, name: str) -> str:
        """Return a setting of the user; empty if there is none."""
        return self.text("config", "--get", name, codes=(0, 1))

    @contextmanager
    def temporary_index(self) -> Generator[tuple["GitRepository", Path], None, None]:
        """Work with an index of its own, which does not exist yet; also yield its path."""
        with TemporaryDirectory(prefix="wink-index-") as directory:
            index = Path(directory) / "index"
            runner = replace(self.runner, variables={"GIT_INDEX_FILE": str(index)})
            yield replace(self, runner=runner), index

    @contextmanager
    def locked_index(self) -> Generator["GitRepository", None, None]:
        """Change a copy of the user's index under git's own lock; it replaces it at the end."""
        index, lock = self.git_dir / "index", self.git_dir / "index.lock"
        try:
            target = os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileExistsError as error:
            raise CommitError(self._describe_lock()) from error
        try:
            with self.temporary_index() as (repository, copy):
                if index.exists():
                    copy.write_bytes(index.read_bytes())
                    os.fchmod(target, index.stat().st_mode & 0o777)
                yield repository
                write_all(target, copy.read_bytes())
            os.fsync(target)
            lock.rename(index)
        except BaseException:
            lock.unlink(missing_ok=True)
            raise
        finally:
            os.close(target)

    def change_entries(self, changes: Mapping[str, IndexChange]) -> None:
        """Change entries of the user's index where they are what is expected; leave the others."""
        with self.locked_index() as index:
            now = index.entries()
            wanted = {
                path: after
                for path, (before, after) in changes.items()
                if now.get(path) == before and before != after
            }
            if wanted:
                index.update_entries(wanted)

    def _describe_lock(self) -> str:
        return (
            f"Another git process is using {str(self.top)!r}. Wait for it; if none is running,"
            f" remove {str(self.git_dir / 'index.lock')!r}"
        )

    def entries(self, commit: str = "") -> dict[str, GitEntry]:
        """Return the entries of a commit, or of the index, by path."""
        command = ("ls-tree", "-r", "--full-tree", commit) if commit else ("ls-files", "--stage")
        found: dict[str, GitEntry] = {}
        for line in self.run(*command, "-z").split(b"\0")[:-1]:
            facts, _, path = line.partition(b"\t")
            mode, *more = facts.decode().split()  # the kind and the id, or the id and the stage
            if not commit and more[1] != "0":
                raise CommitError(f"A file has a merge conflict: {os.fsdecode(path)!r}; resolve it")
            found[os.fsdecode(path)] = (mode, more[1] if commit else more[0])
        return found

    def update_entries(self, entries: Mapping[str, GitEntry | None]) -> None:
        """Change entries of the index; None removes one."""
        removed = [path for path, entry in entries.items() if entry is None]
        nothing = "0" * len(self.text("rev-parse", "HEAD"))
        lines = [b"0 %b\t%b\0" % (nothing.encode(), os.fsencode(path)) for path in removed]
        for path, entry in entries.items():
            if entry is not None:
                lines.append(" ".join(entry).encode() + b"\t" + os.fsencode(path) + b"\0")
        self.run("update-index", "-z", "--add", "--replace", "--index-info", data=b"".join(lines))

    def store(self, path: str, content: bytes) -> str:
        """Store a blob as git would on `git add`, with conversions; return its id."""
        arguments = ("hash-object", "-w", f"--path={path}", "--stdin")
        return self.run(*arguments, data=content).decode().strip()

    def store_all(self, contents: Iterable[bytes]) -> list[str]:
        """Store blobs as they are; return their ids."""
        with TemporaryDirectory(prefix="wink-blobs-") as directory:
            files: list[bytes] = []
            for number, content in enumerate(contents):
                file = Path(directory) / str(number)
                file.write_bytes(content)
                files.append(os.fsencode(file) + b"\n")
            arguments = ("hash-object", "-w", "--no-filters", "--stdin-paths")
            return self.run(*arguments, data=b"".join(files)).decode().split()

    def read(self, object_id: str) -> bytes:
        """Return the content of a blob."""
        return self.run("cat-file", "blob", object_id)

    def converted_paths(self, paths: Sequence[str]) -> set[str]:
        """Return the paths whose content git converts, such as line ends or large files."""
        if self.setting("core.autocrlf").lower() in {"true", "input", "yes", "on", "1"}:
            return set(paths)
        found = self._check_attributes(paths, *_CONVERSIONS)
        return {path for path, value in found if value not in {"unspecified", ""}}

    def _check_attributes(self, paths: Sequence[str], *names: str) -> Iterator[tuple[str, str]]:
        """Yield the paths, each with the value of each attribute."""
        data = b"".join(os.fsencode(path) + b"\0" for path in paths)
        found = self.run("check-attr", "-z", "--stdin", *names, data=data).split(b"\0")
        return zip(map(os.fsdecode, found[0::3]), map(os.fsdecode, found[2::3]), strict=False)

    def check_filters(self, paths: Sequence[str]) -> None:
        """Raise CommitError if git converts a path with a filter of the repository's own."""
        own = {
            each[7:].rpartition(".")[0] for each in self._own_settings() if each[:7] == "filter."
        }
        if not own or not paths:
            return
        for path, value in self._check_attributes(paths, "filter"):
            if value in own:
                raise CommitError(
                    f"The repository's own configuration names a program, the filter {value!r},"
                    f" for {path!r}; it is not run here: apply the changes, then commit them with"
                    " git"
                )

    def signing_options(self) -> list[str]:
        """Return the options to sign a commit, if the user signs all of them."""
        if self.setting("commit.gpgSign").lower() not in {"true", "yes", "on", "1"}:
            return []
        own = next((each for each in self._own_settings() if _SIGNING_PROGRAM.match(each)), None)
        if own is not None:
            raise CommitError(
                f"The repository's own configuration names the program that signs, {own}; it is not"
                " run here: apply the changes, then commit them with git"
            )
        return ["-S"]

    def _own_settings(self) -> list[str]:
        listed = self.run("config", "--list", "--show-scope", "--name-only", "-z").split(b"\0")
        pairs = zip(listed[0::2], listed[1::2], strict=False)
        return [os.fsdecode(name) for scope, name in pairs if scope in {b"local", b"worktree"}]

    def ignored_paths(self, paths: Sequence[str]) -> set[str]:
        """Return the paths that git ignores."""
        # what is below a link now would be an error; a colon at the beginning would be a pattern
        asked = [
            path
            for path in paths
            if not any((self.top / parent).is_symlink() for parent in parents_of(path))
        ]
        data = b"".join(b"./" + os.fsencode(path) + b"\0" for path in asked)
        found = self.run("check-ignore", "-z", "--stdin", data=data, codes=(0, 1))
        return {os.fsdecode(path[2:]) for path in found.split(b"\0")[:-1]}

    def active_hooks(self) -> list[str]:
        """Return the hooks that `git commit` would run, and we do not."""
        paths = self.text("config", "--get-all", "core.hooksPath").split("\n")
        common = self.text("rev-parse", "--path-format=absolute", "--git-common-dir")
        # the last one is ours
        directory = self.top / paths[-2] if len(paths) > 1 else Path(common) / "hooks"
        return [each for each in _HOOKS if os.access(directory.expanduser() / each, os.X_OK)]

    def check_ready(self) -> None:
        """Raise CommitError if no commit can be made now."""
        if (self.git_dir / "index.lock").exists():
            raise CommitError(self._describe_lock())
        for name, what in _UNDER_WAY.items():
            if (self.git_dir / name).exists():
                raise CommitError(f"{what} is under way in {str(self.top)!r}; finish it first")
        if not self.text("rev-parse", "--verify", "--quiet", "HEAD", codes=(0, 1)):
            raise CommitError(
                f"The repository has no commit yet: {str(self.top)!r}; make the first"
            )
        has_email = self.setting("user.email") or self.setting("author.email")
        if not (has_email or os.environ.get("GIT_AUTHOR_EMAIL") or os.environ.get("EMAIL")):
            raise CommitError(
                "git does not know who you are; tell it with: git config --global user.email"
                " YOU@EXAMPLE.ORG, and user.name likewise"
            )
        self.run("var", "GIT_COMMITTER_IDENT")

    def check_new_branch(self, name: str) -> None:
        """Raise CommitError if no branch of this name can be created."""
        if not self.text("check-ref-format", "--branch", name, codes=(0, 1, 128)):
            raise CommitError(f"Not a name for a branch: {name!r}; choose another")
        if self.text("rev-parse", "--verify", "--quiet", f"refs/heads/{name}", codes=(0, 1)):
            raise CommitError(f"The branch exists already: {name!r}; choose another name")


def find_repository(original: Path) -> GitRepository | None:
    """Return the repository whose working tree a directory belongs to, if there is one."""
    program = find_program("git", (original,))
    if program is None:
        return None
    runner = GitRunner(program, original, os.environ, {}, _SETTINGS, _SECONDS)
    try:
        found = GitRepository(original, "", original, runner).text(
            "rev-parse", "--is-inside-work-tree", "--show-toplevel", "--absolute-git-dir"
        )
        is_inside, top, git_dir = found.split("\n")
    except GitTimeoutError:
        raise
    except (CommitError, ValueError):
        return None
    if is_inside != "true":
        return None
    prefix = os.path.relpath(os.path.realpath(original), os.path.realpath(top))
    return GitRepository(Path(top), "" if prefix == "." else f"{prefix}/", Path(git_dir), runner)
