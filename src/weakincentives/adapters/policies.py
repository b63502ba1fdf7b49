"""Policies: small objects that may forbid a tool call, and say why.

A policy looks at a call before it runs, and at what it has changed before that is kept.
What it forbids is undone; its reason is what the model is told.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal
from weakref import WeakSet

from weakincentives.adapters.messages import CheckedCall
from weakincentives.filesystem import Diff, Filesystem, glob_match
from weakincentives.runtime import current_transaction
from weakincentives.runtime.session import Session, Slice, upsert_by


class Policy:
    """What may forbid a call; each method returns a reason, or None."""

    needs_diff: bool = False
    """Whether `review` wants to see what was changed; it costs a snapshot."""

    def allow(self, call: CheckedCall) -> str | None:
        """Look at a call before it runs."""
        return None

    def review(self, call: CheckedCall, changed: Sequence[str], diff: Diff | None) -> str | None:
        """Look at the paths that a call has changed, before that is kept."""
        return None

    def done(self, call: CheckedCall, changed: Sequence[str]) -> None:
        """Take note of a call that succeeded."""


_MAX_HASHED = 64 * 1024 * 1024  # bytes: a look at a page must not cost a look at all of it


@dataclass(frozen=True, slots=True)
class FileSeen:
    """What a file was when the model last saw or wrote it; kept in the session.

    Of a file of more than 64 MiB it is the size and the time of its last change.
    """

    path: str
    content_hash: str


class ReadBeforeWrite(Policy):
    """Files that exist may be changed only as the model has seen them.

    What was seen is remembered by content: a file that has changed since must be read
    again, one that was merely touched need not be.

    Args:
        reads: The names of tools whose result shows a file, where tools do not say themselves
            what they read.
        writes: The names of tools that change a file which they name, likewise.
    """

    def __init__(
        self,
        *,
        reads: Sequence[str] = ("read_file",),
        writes: Sequence[str] = ("write_file", "edit_file"),
    ) -> None:
        """Bind to the names of tools."""
        self._reads = frozenset(reads)
        self._writes = frozenset(writes)
        self._ready: WeakSet[Session] = WeakSet()

    def allow(self, call: CheckedCall) -> str | None:
        """Refuse to change a file that was not read, or has changed since."""
        filesystem = call.context.filesystem
        if filesystem is None:
            return None
        seen = {each.path: each.content_hash for each in call.context.session[FileSeen].all()}
        for path in self._written(call):
            present = _content_hash(filesystem, path)
            if present is None or present == seen.get(path):
                continue
            if path in seen:
                return f"{path} has changed since you read it: read it again, then repeat the call"
            return f"{path} exists and you have not read it: read it first, then repeat the call"
        return None

    def done(self, call: CheckedCall, changed: Sequence[str]) -> None:
        """Remember what the model has seen."""
        filesystem = call.context.filesystem
        if filesystem is None:
            return
        for path in dict.fromkeys((*self._read(call), *self._changed(call, changed))):
            present = _content_hash(filesystem, path)
            if present is not None:
                self._slice(call.context.session).dispatch(FileSeen(path, present))

    def _read(self, call: CheckedCall) -> tuple[str, ...]:
        if call.access is not None:
            return call.access.reads
        return call.paths if call.tool.name in self._reads else ()

    def _written(self, call: CheckedCall) -> tuple[str, ...]:
        if call.access is not None:
            return call.access.writes
        return call.paths if call.tool.name in self._writes else ()

    def _changed(self, call: CheckedCall, changed: Sequence[str]) -> Sequence[str]:
        """Return what the model knows because it wrote it."""
        if call.access is not None:
            return tuple(path for path in changed if path in call.access.writes)
        return changed if call.tool.name in self._writes else ()

    def _slice(self, session: Session) -> Slice[FileSeen]:
        if session not in self._ready:
            session[FileSeen].register(FileSeen, upsert_by(lambda each: each.path))
            if current_transaction() is None:  # or it may be taken back, and not be ready at all
                self._ready.add(session)
        return session[FileSeen]


class AllowedPaths(Policy):
    """Only some paths may be touched.

    Args:
        allow: Patterns of paths that may be touched; none given means all.
        deny: Patterns of paths that may not, whatever `allow` says.
        access: Whether reading is bound too, or only changes. Changes are bound wherever they
            are; reading is bound by the paths that a call names, and what a search finds
            below an allowed one is not.
    """

    def __init__(
        self,
        allow: Sequence[str] = (),
        *,
        deny: Sequence[str] = (),
        access: Literal["write", "any"] = "write",
    ) -> None:
        """Bind to patterns, as `glob` has them."""
        if isinstance(allow, str) or isinstance(deny, str):
            raise TypeError("AllowedPaths needs sequences of patterns, not one pattern")
        self._allow = tuple(allow)
        self._deny = tuple(deny)
        self._reading = access == "any"

    def allow(self, call: CheckedCall) -> str | None:
        """Refuse a call that names a path which may not be touched."""
        if self._reading:
            return self._refusal(self._named(call)) or self._hidden(call)
        if call.access is not None:
            return self._refusal(call.access.changes)
        return None if call.tool.read_only else self._refusal(call.paths)

    def review(self, call: CheckedCall, changed: Sequence[str], diff: Diff | None) -> str | None:
        """Refuse what was changed without being named, for example by a patch."""
        return self._refusal(changed)

    def _named(self, call: CheckedCall) -> tuple[str, ...]:
        """Return the paths to judge: what is looked through, as what is in it would be."""
        if call.access is None:
            return call.paths
        rest = (*call.access.reads, *call.access.changes)
        return (*rest, *(self._inside(each) for each in call.access.searches))

    def _inside(self, path: str) -> str:
        below = f"{path}/." if path not in {"", "."} else "."
        allowed = any(glob_match(below, pattern) for pattern in self._allow)
        return below if allowed else path

    def _hidden(self, call: CheckedCall) -> str | None:
        """Refuse to look through a directory that has something in it that may not be seen."""
        filesystem = call.context.filesystem
        if call.access is None or filesystem is None:
            return None
        for place in call.access.searches:
            for pattern in self._deny:
                for found in filesystem.glob(pattern):
                    if place in {"", "."} or found.path.startswith(f"{place}/"):
                        return (
                            f"{place} has something below it that may not be touched:"
                            f" {found.path}; look through a directory without it"
                        )
        return None

    def _refusal(self, paths: Sequence[str]) -> str | None:
        for path in paths:
            if any(glob_match(path, pattern) for pattern in self._deny):
                return f"{path} may not be touched: it matches a denied pattern"
            if self._allow and not any(glob_match(path, pattern) for pattern in self._allow):
                return f"{path} may not be touched: allowed are {', '.join(self._allow)}"
        return None


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """A call that waits for approval, with the change that it would make."""

    tool: str
    params: object
    diff: Diff


class Approval(Policy):
    """Somebody is asked before a change is kept.

    Args:
        ask: Called with an `ApprovalRequest`; True approves, False or a reason refuses.
        tools: The names of tools to ask about; none given means all that change files.
    """

    needs_diff = True

    def __init__(
        self, ask: Callable[[ApprovalRequest], bool | str], *, tools: Sequence[str] = ()
    ) -> None:
        """Ask `ask`."""
        self._ask = ask
        self._tools = frozenset(tools)

    def review(self, call: CheckedCall, changed: Sequence[str], diff: Diff | None) -> str | None:
        """Ask, unless nothing has changed; what cannot be shown is refused."""
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


def _content_hash(filesystem: Filesystem, path: str) -> str | None:
    """Return what tells a file from what it was: its hash, or its size and time if it is huge."""
    try:
        found = filesystem.stat(path)
        if found.size_bytes > _MAX_HASHED and found.modified_at is not None:
            return f"{found.size_bytes} bytes of {found.modified_at.isoformat()}"
        return found.content_hash
    except (OSError, ValueError):
        return None
