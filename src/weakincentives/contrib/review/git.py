"""Git commands in the repository of an original, which belongs to the user.

They run with the user's own configuration, but no program runs that only the repository's own
configuration names: somebody else may have written it. The index that they change is a temporary
one unless the real one is asked for.
"""

import os
import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from weakincentives.contrib.review.git_runner import GitError, GitRunner, GitTimeoutError
from weakincentives.contrib.review.records import GitEntry, IndexChange
from weakincentives.errors import WinkError
from weakincentives.posix import parents_of, write_all
from weakincentives.sandbox.system_paths import find_program

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


class CommitError(WinkError, RuntimeError):
    """The changes cannot become a commit."""


@dataclass(frozen=True, slots=True)
class GitRepository:
    """The repository that a directory is in."""

    top: Path
    """The top of the working tree."""
    prefix: str
    """The directory relative to the top; empty, or with a slash at its end."""
    git_dir: Path
    program: str
    variables: Mapping[str, str] = field(default_factory=dict[str, str])

    def run(self, *arguments: str, data: bytes = b"", codes: Sequence[int] = (0,)) -> bytes:
        """Run git at the top of the working tree; return what it prints.

        Raises:
            CommitError: It exits with none of `codes`, or does not end.
        """
        seconds = _SIGNING_SECONDS if "-S" in arguments else _SECONDS
        runner = GitRunner(self.program, self.top, os.environ, self.variables, _SETTINGS, seconds)
        try:
            return runner.run(*arguments, data=data, codes=codes)
        except GitError as error:
            raise CommitError(str(error)) from error

    def text(self, *arguments: str, codes: Sequence[int] = (0,)) -> str:
        """Run git; return what it prints, without white space around it."""
        return os.fsdecode(self.run(*arguments, codes=codes)).strip()

    def setting(self, name: str) -> str:
        """Return a setting of the user; empty if there is none."""
        return self.text("config", "--get", name, codes=(0, 1))

    @contextmanager
    def temporary_index(self, commit: str = "HEAD") -> Generator["GitRepository", None, None]:
        """Work with an index of its own, which has the files of a commit."""
        with TemporaryDirectory(prefix="wink-index-") as directory:
            variables = {"GIT_INDEX_FILE": str(Path(directory) / "index")}
            other = GitRepository(self.top, self.prefix, self.git_dir, self.program, variables)
            other.run("read-tree", commit)
            yield other

    @contextmanager
    def locked_index(self) -> Generator["GitRepository", None, None]:
        """Change a copy of the user's index under git's own lock; it replaces the index at the end.

        Raises:
            CommitError: Another git command has the lock.
        """
        index, lock = self.git_dir / "index", self.git_dir / "index.lock"
        try:
            target = os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileExistsError as error:
            raise CommitError(self._describe_lock()) from error
        try:
            with TemporaryDirectory(prefix="wink-index-") as directory:
                copy = Path(directory) / "index"
                if index.exists():
                    copy.write_bytes(index.read_bytes())
                    os.fchmod(target, index.stat().st_mode & 0o777)
                variables = {"GIT_INDEX_FILE": str(copy)}
                yield GitRepository(self.top, self.prefix, self.git_dir, self.program, variables)
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
            f"Another git command is running in {str(self.top)!r}: wait until it has ended, or"
            f" remove {str(self.git_dir / 'index.lock')!r} if none is"
        )

    def entries(self) -> dict[str, GitEntry]:
        """Return the entries of the index by path.

        Raises:
            CommitError: A path has a merge conflict.
        """
        found: dict[str, GitEntry] = {}
        for line in self.run("ls-files", "--stage", "-z").split(b"\0")[:-1]:
            facts, _, path = line.partition(b"\t")
            mode, object_id, stage = facts.decode().split()
            if stage != "0":
                raise CommitError(f"A file has a merge conflict: {os.fsdecode(path)!r}; resolve it")
            found[os.fsdecode(path)] = (mode, object_id)
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
        data = b"".join(os.fsencode(path) + b"\0" for path in paths)
        found = self.run("check-attr", "-z", "--stdin", *_CONVERSIONS, data=data).split(b"\0")
        values = zip(found[0::3], found[2::3], strict=False)
        return {os.fsdecode(path) for path, value in values if value not in {b"unspecified", b""}}

    def check_filters(self, paths: Sequence[str]) -> None:
        """Raise CommitError if git converts a path with a filter of the repository's own."""
        own = {
            each[7:].rpartition(".")[0] for each in self._own_settings() if each[:7] == "filter."
        }
        if not own or not paths:
            return
        data = b"".join(os.fsencode(path) + b"\0" for path in paths)
        found = self.run("check-attr", "-z", "--stdin", "filter", data=data).split(b"\0")
        for path, value in zip(found[0::3], found[2::3], strict=False):
            if os.fsdecode(value) in own:
                raise CommitError(
                    f"The repository's own configuration names a program, the filter"
                    f" {os.fsdecode(value)!r}, for {os.fsdecode(path)!r}; it is not run here: apply"
                    " the changes, then commit them with git"
                )

    def signing_options(self) -> list[str]:
        """Return the options to sign a commit, if the user signs all of them.

        Raises:
            CommitError: The repository's own configuration names the program.
        """
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
        """Return the names of the settings in the repository's own configuration."""
        listed = self.run("config", "--list", "--show-scope", "--name-only", "-z").split(b"\0")
        pairs = zip(listed[0::2], listed[1::2], strict=False)
        return [os.fsdecode(name) for scope, name in pairs if scope in {b"local", b"worktree"}]

    def ignored_paths(self, paths: Sequence[str]) -> set[str]:
        """Return the paths that git ignores."""
        # what is below a link now would be an error; a colon at the beginning would be a pattern
        asked = [path for path in paths if not self._is_below_link(path)]
        data = b"".join(b"./" + os.fsencode(path) + b"\0" for path in asked)
        found = self.run("check-ignore", "-z", "--stdin", data=data, codes=(0, 1))
        return {os.fsdecode(path[2:]) for path in found.split(b"\0")[:-1]}

    def _is_below_link(self, path: str) -> bool:
        return any((self.top / parent).is_symlink() for parent in parents_of(path))

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
    """Return the repository whose working tree a directory belongs to, if there is one.

    Raises:
        CommitError: Git does not end.
    """
    program = find_program("git", (original,))
    if program is None:
        return None
    repository = GitRepository(original, "", original, program)
    try:
        found = repository.text(
            "rev-parse", "--is-inside-work-tree", "--show-toplevel", "--absolute-git-dir"
        )
        is_inside, top, git_dir = found.split("\n")
    except CommitError as error:
        if isinstance(error.__cause__, GitTimeoutError):
            raise
        return None
    except ValueError:
        return None
    if is_inside != "true":
        return None
    prefix = os.path.relpath(os.path.realpath(original), os.path.realpath(top))
    return GitRepository(Path(top), "" if prefix == "." else f"{prefix}/", Path(git_dir), program)
