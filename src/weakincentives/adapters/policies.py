"""Policies: rules that may deny a tool call, with a reason for the model.

A policy sees a call before it runs, and its changes before they are committed. Denied changes
are rolled back, and the model gets the reason.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from weakref import WeakSet

from weakincentives.adapters.messages import CheckedCall
from weakincentives.filesystem import (
    Diff,
    Filesystem,
    Snapshotable,
    Viewable,
    diff_since,
    glob_match,
)
from weakincentives.prompt import ToolAccess
from weakincentives.runtime import current_transaction, take_snapshot
from weakincentives.runtime.session import Session, Slice, upsert_by


class Policy:
    """Base class of policies; `allow` and `review` return a reason to deny, or None."""

    needs_diff: bool = False
    """Whether `review` needs the diff of the changes; it costs a snapshot."""

    @property
    def reviews_changes(self) -> bool:
        """Whether it has a `review`; then nothing may change files after its call has ended."""
        return type(self).review is not Policy.review

    def allow(self, call: CheckedCall) -> str | None:
        """Decide on a call before it runs."""
        del call  # for subclasses
        return None

    def allow_access(self, call: CheckedCall, access: ToolAccess) -> str | None:
        """Decide on paths that a call asks for while it runs, as the code of `evaluate_python`."""
        del call, access  # for subclasses
        return None

    def review(self, call: CheckedCall, changed: Sequence[str], diff: Diff | None) -> str | None:
        """Decide on the changed paths of a call before they are committed."""
        del call, changed, diff  # for subclasses
        return None

    def record(self, call: CheckedCall, changed: Sequence[str]) -> None:
        """Record a call that succeeded."""


_MAX_HASHED = 64 * 1024 * 1024  # bytes: reading one page must not cost a read of the whole file


@dataclass(frozen=True, slots=True)
class FileSeen:
    """The content of a file when the model last read or wrote it; stored in the session.

    For a file of more than 64 MiB it is the size and the modification time.
    """

    path: str
    content_hash: str


class ReadBeforeWrite(Policy):
    """Allows changes to an existing file only if the model has read its current content.

    Reads are remembered by content hash: a file that has changed since must be read again, one
    that was merely touched or moved need not be.

    Args:
        reads: Names of tools whose result shows a file, for tools that do not declare their
            access.
        writes: Names of tools that change the file that they name, likewise.
    """

    def __init__(
        self,
        *,
        reads: Sequence[str] = ("read_file",),
        writes: Sequence[str] = ("write_file", "edit_file"),
    ) -> None:
        """Create the policy for these tool names."""
        self._reads = frozenset(reads)
        self._writes = frozenset(writes)
        self._prepared: WeakSet[Session] = WeakSet()

    def allow(self, call: CheckedCall) -> str | None:
        """Deny a change to a file that was not read, or has changed since."""
        return self._check_writes(call, self._written_paths(call))

    def allow_access(self, call: CheckedCall, access: ToolAccess) -> str | None:
        """Deny a change to a file that was not read, or has changed since."""
        return self._check_writes(call, access.writes)

    def _check_writes(self, call: CheckedCall, paths: Sequence[str]) -> str | None:
        filesystem = call.context.filesystem
        if filesystem is None:
            return None
        seen = {each.path: each.content_hash for each in call.context.session[FileSeen].all()}
        for path in paths:
            current = _content_hash(filesystem, path)
            if current is None or current == seen.get(path):
                continue
            if _is_moved(filesystem, current, seen):
                continue
            if path in seen:
                return f"{path} has changed since you read it: read it again, then repeat the call"
            return f"{path} exists and you have not read it: read it first, then repeat the call"
        return None

    def record(self, call: CheckedCall, changed: Sequence[str]) -> None:
        """Remember the content that the model has read or written."""
        filesystem = call.context.filesystem
        if filesystem is None:
            return
        known = (*self._read_paths(call), *self._changed_by_model(call, changed))
        for path in dict.fromkeys(known):
            current = _content_hash(filesystem, path)
            if current is not None:
                self._slice(call.context.session).dispatch(FileSeen(path, current))

    def _read_paths(self, call: CheckedCall) -> tuple[str, ...]:
        if call.access is not None:
            return call.access.reads
        return call.paths if call.tool.name in self._reads else ()

    def _written_paths(self, call: CheckedCall) -> tuple[str, ...]:
        if call.access is not None:
            return call.access.writes
        return call.paths if call.tool.name in self._writes else ()

    def _changed_by_model(self, call: CheckedCall, changed: Sequence[str]) -> Sequence[str]:
        """Return the paths whose content the model knows because it wrote it."""
        if call.access is not None:
            return tuple(path for path in changed if path in call.access.writes)
        return changed if call.tool.name in self._writes else ()

    def _slice(self, session: Session) -> Slice[FileSeen]:
        if session not in self._prepared:
            session[FileSeen].register(FileSeen, upsert_by(lambda each: each.path))
            if current_transaction() is None:  # else a rollback may undo the registration
                self._prepared.add(session)
        return session[FileSeen]


class AllowedPaths(Policy):
    """Restricts tools to some paths.

    Args:
        allow: Patterns of allowed paths; empty allows all.
        deny: Patterns of denied paths; they take precedence over `allow`.
        access: `write` restricts changes only, `any` reads too. Changes are checked wherever they
            happen. Reads are checked by the paths that a call names, not by what a search finds
            below an allowed one.
    """

    def __init__(
        self,
        allow: Sequence[str] = (),
        *,
        deny: Sequence[str] = (),
        access: Literal["write", "any"] = "write",
    ) -> None:
        """Create the policy for these glob patterns."""
        if isinstance(allow, str) or isinstance(deny, str):
            raise TypeError("AllowedPaths needs sequences of patterns, not one pattern")
        self._allow = tuple(allow)
        self._deny = tuple(deny)
        self._checks_reads = access == "any"

    def allow(self, call: CheckedCall) -> str | None:
        """Deny a call that names a path outside the allowed ones."""
        if call.access is not None:
            return self.allow_access(call, call.access)
        is_unchecked = call.tool.read_only and not self._checks_reads
        return None if is_unchecked else self._check_paths(call.paths)

    def allow_access(self, call: CheckedCall, access: ToolAccess) -> str | None:
        """Deny access to a path outside the allowed ones."""
        if not self._checks_reads:
            return self._check_paths(access.changes)
        inside = map(self._path_inside, access.searches)
        named = (*access.reads, *access.changes, *inside)
        return self._check_paths(named) or self._check_searches(call, access)

    def review(self, call: CheckedCall, changed: Sequence[str], diff: Diff | None) -> str | None:
        """Deny changes to paths that the call did not name, for example by a patch."""
        del call, diff  # the paths decide
        return self._check_paths(changed)

    def _path_inside(self, directory: str) -> str:
        """Return a path inside a searched directory, if patterns allow only what is inside."""
        inside = f"{directory}/." if directory not in {"", "."} else "."
        allowed = any(glob_match(inside, pattern) for pattern in self._allow)
        return inside if allowed else directory

    def _check_searches(self, call: CheckedCall, access: ToolAccess) -> str | None:
        """Deny a search of a directory that contains a denied path."""
        filesystem = call.context.filesystem
        if filesystem is None:
            return None
        for directory in access.searches:
            for pattern in self._deny:
                for match in filesystem.glob(pattern):
                    if directory in {"", "."} or match.path.startswith(f"{directory}/"):
                        return (
                            f"{directory} contains a path that may not be accessed: {match.path};"
                            " search a directory without it"
                        )
        return None

    def _check_paths(self, paths: Sequence[str]) -> str | None:
        for path in paths:
            if any(glob_match(path, pattern) for pattern in self._deny):
                return f"{path} may not be accessed: it matches a denied pattern"
            if self._allow and not any(glob_match(path, pattern) for pattern in self._allow):
                return f"{path} may not be accessed: allowed paths are {', '.join(self._allow)}"
        return None


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """A call that needs approval, with the diff of its changes."""

    tool: str
    params: object
    diff: Diff


class Approval(Policy):
    """Asks for approval before changes are committed.

    Args:
        ask: Called with an `ApprovalRequest`; True approves, False or a reason denies.
        tools: Names of tools that need approval; empty means all that change files.
    """

    needs_diff = True

    def __init__(
        self, ask: Callable[[ApprovalRequest], bool | str], *, tools: Sequence[str] = ()
    ) -> None:
        """Create the policy with a callback."""
        self._ask = ask
        self._tools = frozenset(tools)

    def review(self, call: CheckedCall, changed: Sequence[str], diff: Diff | None) -> str | None:
        """Ask, if anything has changed; changes that cannot be shown are denied."""
        if diff is None and changed:
            return (
                "The change cannot be shown for approval:"
                " the filesystem cannot be compared with a snapshot"
            )
        if not diff or (self._tools and call.tool.name not in self._tools):
            return None
        answer = self._ask(ApprovalRequest(call.tool.name, call.params, diff))
        if answer is True:
            return None
        return answer if isinstance(answer, str) and answer else "The change was not approved"


def diff_from_now(filesystem: Filesystem | None) -> Callable[[], Diff | None] | None:
    """Take a snapshot for a review; return what compares the files with it, if that is possible."""
    if not isinstance(filesystem, Viewable) or not isinstance(filesystem, Snapshotable):
        return None
    snapshot = take_snapshot(filesystem, "before approval")
    return lambda: diff_since(filesystem, snapshot)


def _is_moved(filesystem: Filesystem, content_hash: str, seen: Mapping[str, str]) -> bool:
    """Return whether content was read under a name that is gone: the file was moved."""
    names = (path for path, each in seen.items() if each == content_hash)
    return any(not filesystem.exists(path) for path in names)


def _content_hash(filesystem: Filesystem, path: str) -> str | None:
    """Return a file's content hash, or its size and modification time if it is huge."""
    try:
        found = filesystem.stat(path)
        if found.size_bytes > _MAX_HASHED and found.modified_at is not None:
            return f"{found.size_bytes} bytes of {found.modified_at.isoformat()}"
        return found.content_hash
    except (OSError, ValueError):
        return None
