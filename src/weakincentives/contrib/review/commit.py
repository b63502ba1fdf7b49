"""Git commits of the changes of a working copy: on the current branch, or on a new one.

A commit has the last commit's files with the changes of the copy, and nothing else: not the
edits that the user has not committed yet. It is built in a temporary index.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from weakincentives.contrib.review.apply import Applied, CommitSource
from weakincentives.contrib.review.git import GITLINK, CommitError, GitRepository, find_repository
from weakincentives.contrib.review.hunks import Hunk
from weakincentives.contrib.review.merge import merge_content
from weakincentives.contrib.review.records import GitEntry, IndexChange
from weakincentives.contrib.review.review import Review
from weakincentives.errors import WinkError
from weakincentives.filesystem import FileStat
from weakincentives.filesystem.diff import Side
from weakincentives.posix import display_path, parents_of

_MAX_SUBJECT = 72
_MAX_NAMES = 5
_FILE, _EXECUTABLE, _LINK = "100644", "100755", "120000"


@dataclass(frozen=True, slots=True)
class Committed:
    """A commit of the changes of a working copy."""

    commit: str
    """Its id; empty if there was nothing that git tracks."""
    paths: tuple[str, ...]
    """The paths in it, relative to the original; sorted."""
    left_out: Mapping[str, str]
    """The changed paths that are not in it, and why."""
    branch: str = ""
    """The branch that it is on; empty for a detached HEAD."""
    applied: Applied | None = None
    """What was applied to the original before."""
    hooks: tuple[str, ...] = ()
    """The hooks of the repository, which were not run."""


def require_repository(original: Path, branch: str | None = None) -> GitRepository:
    """Return the repository of a directory in which a commit can be made now.

    Raises:
        CommitError: There is none, or the new `branch` cannot be created.
    """
    repository = find_repository(original)
    if repository is None:
        raise CommitError(f"Not a git repository: {str(original)!r}")
    repository.check_ready()
    if branch is not None:
        repository.check_new_branch(branch)
    return repository


def commit_changes(
    review: Review,
    message: str,
    *,
    paths: Sequence[str] | None = None,
    hunks: Sequence[Hunk] = (),
    merge: bool = False,
) -> Committed:
    """Apply changes to the original, and commit exactly these on the current branch.

    What was applied before and not committed is committed as well. Staged changes and other
    edits of the user stay as they are.

    Raises:
        CommitError: It is not possible; nothing was applied or committed.
        ConflictError: As for `Review.apply`.
    """
    repository = require_repository(review.copy.original)
    source = review.commit_source(paths, hunks)
    tree = _CommitTree(repository, source)
    tree.merge_staged(repository)
    made = tree.commit(message) if tree.changed else ""
    applied = None
    if source.has_pending:
        applied = review.apply(paths, hunks=hunks, merge=merge)
    left_out = tree.left_out
    if not made:
        return Committed("", (), left_out, applied=applied)
    try:
        _move_branch(review, repository, tree, made, message)
    except CommitError as error:
        raise _take_back(review, applied, error) from error
    branch = repository.text("symbolic-ref", "--quiet", "--short", "HEAD", codes=(0, 1))
    hooks = tuple(repository.active_hooks())
    return Committed(made, tree.paths, left_out, branch, applied, hooks)


def _move_branch(
    review: Review, repository: GitRepository, tree: "_CommitTree", made: str, message: str
) -> None:
    """Add a commit to the current branch, and its changes to the user's index."""
    reason = f"commit: {message.partition(chr(10))[0]}"
    earlier = review.applies.last_staged
    with repository.locked_index() as index:
        now, staged = index.entries(), tree.merge_staged(index)
        changes = {path: (now.get(path), entry) for path, entry in staged.items()}
        for path, (before, after) in earlier.items():  # of an attempt that was killed
            if path in changes and now.get(path) == after:
                changes[path] = (before, changes[path][1])
        # before-images first; after a kill the changes are staged, and the next attempt commits
        review.applies.mark_committed("", changes)
        index.update_entries(staged)
    try:
        repository.run("update-ref", "-m", reason, "HEAD", made, tree.head)
    except CommitError:
        repository.change_entries(_invert(changes))
        review.applies.mark_committed("", {})
        raise
    review.applies.mark_committed(made, changes)


def _invert(changes: Mapping[str, IndexChange]) -> dict[str, IndexChange]:
    return {path: (after, before) for path, (before, after) in changes.items()}


def _take_back(review: Review, applied: Applied | None, error: CommitError) -> CommitError:
    """Undo an apply whose commit failed; return the error that says what is left of it."""
    fact = "nothing was committed"
    if applied is not None:
        try:
            kept = review.undo(partial=True).kept
        except (WinkError, ValueError, OSError) as problem:
            fact += f", but the changes stay applied: {problem}"
        else:
            fact = "nothing was applied or committed"
            if kept:
                fact = f"{fact}, except that {'; '.join(map(str, kept))}"
    return CommitError(f"{error}; {fact}; try again")


def commit_to_branch(
    review: Review,
    name: str,
    message: str,
    *,
    paths: Sequence[str] | None = None,
    hunks: Sequence[Hunk] = (),
) -> Committed:
    """Commit changes on a new branch, which starts at the last commit.

    Neither the original nor the current branch changes.

    Raises:
        CommitError: It is not possible; there is no branch.
    """
    repository = require_repository(review.copy.original, name)
    tree = _CommitTree(repository, review.commit_source(paths, hunks, with_applied=False))
    if not tree.changed:
        return Committed("", (), tree.left_out)
    made = tree.commit(message)
    reason = f"branch: created from {message.partition(chr(10))[0]}"
    # the empty old value: it must not exist
    repository.run("update-ref", "-m", reason, f"refs/heads/{name}", made, "")
    hooks = tuple(repository.active_hooks())
    return Committed(made, tree.paths, tree.left_out, name, hooks=hooks)


def undo_commit(review: Review) -> str:
    """Take the commit of the last apply off its branch; return its id, or an empty string.

    The files stay as they are: `Review.undo` restores them.

    Raises:
        CommitError: Other commits follow it, or it was pushed.
    """
    made, staged = review.applies.last_commit, review.applies.last_staged
    repository = find_repository(review.copy.original) if made or staged else None
    if repository is None:
        return ""
    if not made or not _is_ancestor(repository, made):
        if staged:  # of a commit, or an undo, that was killed
            repository.change_entries(_invert(staged))
        return ""
    if repository.text("rev-parse", "HEAD") != made:
        raise CommitError(
            f"The changes were committed as {made[:10]}, and other commits follow;"
            f" to undo them: git revert {made[:10]}"
        )
    if repository.text("branch", "--remotes", "--contains", made):
        raise CommitError(
            f"The changes were committed as {made[:10]} and pushed;"
            f" to undo them: git revert {made[:10]}"
        )
    repository.check_ready()
    _move_head(repository, made, f"{made}~1")
    repository.change_entries(_invert(review.applies.last_staged))
    return made


def redo_commit(review: Review, made: str) -> None:
    """Put a commit that `undo_commit` took off its branch back onto it."""
    repository = find_repository(review.copy.original)
    if repository is not None:
        _move_head(repository, f"{made}~1", made)
        repository.change_entries(review.applies.last_staged)


def create_message(task: str, answer: str = "") -> str:
    """Return the message of a commit: the task as its subject, then all of it, and the answer."""
    lines = task.strip().splitlines() or ["Changes of a run"]
    subject = " ".join(lines[0].split())
    is_whole = len(lines) == 1 and len(subject) <= _MAX_SUBJECT
    if len(subject) > _MAX_SUBJECT:
        subject = f"{subject[: _MAX_SUBJECT - 3].rsplit(' ', 1)[0]}..."
    parts = [subject, "" if is_whole else task.strip(), answer.strip()]
    return "\n\n".join(each for each in parts if each).replace("\0", "") + "\n"


def _is_ancestor(repository: GitRepository, made: str) -> bool:
    try:
        repository.run("merge-base", "--is-ancestor", made, "HEAD")
    except CommitError:
        return False
    return True


def _move_head(repository: GitRepository, old: str, new: str) -> None:
    old, new = (repository.text("rev-parse", "--verify", each) for each in (old, new))
    repository.run("update-ref", "-m", "wink: undo", "HEAD", new, old)


class _CommitTree:
    """The tree of a commit: the last commit with the changes, and what is left out."""

    def __init__(self, repository: GitRepository, source: CommitSource) -> None:
        self._repository = repository
        self._sides = Side(source.before), Side(source.after)
        self.left_out: dict[str, str] = {}
        self.changed: dict[str, GitEntry | None] = {}
        self.head: str = repository.text("rev-parse", "HEAD")
        """The commit that the changes are added to; another one may follow it meanwhile."""
        self._sign = repository.signing_options()
        self._head = repository.entries(self.head)
        self._keeps_modes = repository.setting("core.fileMode") != "false"
        before, after = (self._find_entries(side, source.paths) for side in self._sides)
        wanted = self._select(before, after)
        self._originals = self._store(self._sides[0], before, wanted)
        self._results = self._store(self._sides[1], after, wanted)
        self._refuse([path for path in wanted if not self._add(path)], "uncommitted")

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the commit, relative to the original."""
        start = len(self._repository.prefix)
        return tuple(sorted(path[start:] for path in self.changed))

    def commit(self, message: str) -> str:
        """Create the commit, which no branch has yet."""
        with self._repository.temporary_index() as (index, _):
            index.run("read-tree", self.head)
            index.update_entries(self.changed)
            tree = index.text("write-tree")
        arguments = ("commit-tree", *self._sign, "-p", self.head, "-F", "-", tree)
        return self._repository.run(*arguments, data=message.encode()).decode().strip()

    def merge_staged(self, index: GitRepository) -> dict[str, GitEntry | None]:
        """Return the new entries of the user's `index`, with what is staged there."""
        staged = index.entries()
        found: dict[str, GitEntry | None] = {}
        refused: list[str] = []
        for path, entry in self.changed.items():
            now, head = staged.get(path), self._head.get(path)
            if now in (head, entry):
                found[path] = entry
                continue
            merged = self._merge(head, entry, now)
            if merged is None:
                refused.append(path)
            else:
                found[path] = merged
        self._refuse(refused, "staged")
        return found

    # --- steps ---

    def _find_entries(self, side: Side, paths: Sequence[str]) -> dict[str, FileStat]:
        found = {path: side.lookup(path) for path in paths}
        return {
            f"{self._repository.prefix}{path}": each
            for path, each in found.items()
            if each is not None and (each.is_file or each.is_symlink)
        }

    def _select(self, before: Mapping[str, FileStat], after: Mapping[str, FileStat]) -> list[str]:
        """Return the paths that git can commit; the others are left out."""
        wanted: list[str] = []
        new: list[str] = []
        for path in sorted(before.keys() | after.keys()):
            reason = self._find_reason(path, is_new=path not in before)
            if reason:
                self._leave_out(path, reason)
                continue
            wanted.append(path)
            if path not in self._head:
                new.append(path)
        ignored = self._repository.ignored_paths(new) if new else set[str]()
        for path in ignored:
            self._leave_out(path, "ignored by git")
        return [path for path in wanted if path not in ignored]

    def _find_reason(self, path: str, *, is_new: bool) -> str:
        """Return why a path is left out; empty if it is not."""
        for parent in parents_of(path):
            inside = self._head.get(parent, ("", ""))[0] == GITLINK
            is_below = f"{parent}/".startswith(self._repository.prefix)
            is_below = is_below and len(parent) + 1 > len(self._repository.prefix)
            if inside or (is_below and (self._repository.top / parent / ".git").exists()):
                return f"in another repository, {display_path(parent)}"
        return "" if is_new or path in self._head else "not in the last commit"

    def _leave_out(self, path: str, reason: str) -> None:
        self.left_out[path[len(self._repository.prefix) :]] = reason

    def _store(
        self, side: Side, found: Mapping[str, FileStat], wanted: Sequence[str]
    ) -> dict[str, GitEntry]:
        """Store the wanted files as blobs, converted as git would."""
        paths = [path for path in wanted if path in found]
        files = [path for path in paths if found[path].is_file]
        converted = self._repository.converted_paths(files) if files else set[str]()
        self._repository.check_filters(sorted(converted))
        plain = [path for path in paths if path not in converted]
        contents = (side.data(found[path]) for path in plain)
        ids = dict(zip(plain, self._repository.store_all(contents), strict=True)) if plain else {}
        for path in converted:
            ids[path] = self._repository.store(path, side.data(found[path]))
        return {path: (self._mode(path, found[path]), ids[path]) for path in paths}

    def _mode(self, path: str, found: FileStat) -> str:
        if found.is_symlink:
            return _LINK
        known = self._head.get(path, ("", ""))[0]
        if not self._keeps_modes:
            return known if known in {_FILE, _EXECUTABLE} else _FILE
        return _EXECUTABLE if found.permissions & 0o100 else _FILE

    def _add(self, path: str) -> bool:
        """Add the change of a path to the tree; return False if it does not fit."""
        head, before, after = (
            states.get(path) for states in (self._head, self._originals, self._results)
        )
        if head == after:
            return True
        if head == before:
            self.changed[path] = after
            return True
        merged = self._merge(before, after, head)
        if merged is not None:
            self.changed[path] = merged
        return merged is not None

    def _merge(
        self, base: GitEntry | None, ours: GitEntry | None, theirs: GitEntry | None
    ) -> GitEntry | None:
        """Return a file with both changes, or None if they do not fit together."""
        if base is None or ours is None or theirs is None:
            return None
        if {base[0], ours[0], theirs[0]} - {_FILE, _EXECUTABLE}:
            return None
        texts = [self._repository.read(each[1]) for each in (base, ours, theirs)]
        content = merge_content(*texts)
        if content is None:
            return None
        mode = theirs[0] if ours[0] == base[0] else ours[0]
        return mode, self._repository.store_all([content])[0]

    def _refuse(self, paths: Sequence[str], kind: str) -> None:
        if paths:
            names = ", ".join(display_path(path) for path in sorted(paths)[:_MAX_NAMES])
            more = f" and {len(paths) - _MAX_NAMES} more" if len(paths) > _MAX_NAMES else ""
            raise CommitError(
                f"Your {kind} changes overlap with those of the run in {names}{more};"
                " commit or stash yours first"
            )


def is_in_repository(original: Path) -> bool:
    """Return whether a directory looks like a part of a git repository; runs nothing."""
    return any((each / ".git").exists() for each in (original, *original.parents))
