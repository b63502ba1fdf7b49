"""What a prompt tells a model about its workspace; only tools that are there are mentioned."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from weakincentives.contrib.tools.context import DEFAULT_SETTINGS, Handler, ToolSettings
from weakincentives.contrib.tools.dialects import DialectName
from weakincentives.contrib.tools.handlers import HANDLERS
from weakincentives.contrib.tools.projection import ProjectionUpdater
from weakincentives.contrib.tools.spec import Dialect
from weakincentives.contrib.tools.suite import create_dialect, filesystem_tools
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import (
    MAX_WRITE_LENGTH,
    Archivable,
    Closable,
    Filesystem,
    HostBacked,
    HostMount,
    Mountable,
    MountReport,
    SnapshotManager,
)
from weakincentives.filesystem.mounts import HostRoots
from weakincentives.prompt import MarkdownSection, PromptError, Section, Tool, ToolContext
from weakincentives.prompt.validation import check_argument, check_items
from weakincentives.runtime import EventBus, SessionReset, current_transaction
from weakincentives.runtime.session import Session

_PREVIEWED = 20
_TOOLS = f"""\
- Explore with `$LsParams` before you read or write, one directory at a time.
- Find files by name with `$GlobParams`.
- Search the contents of files with `$GrepParams`.
- Read a file with `$ReadFileParams` before you change it, and rely on its current text: what \
you remember may be out of date.
- Change part of a file with `$EditFileParams`: copy the text to replace exactly, without line \
numbers.
- Change several files at once with `$ApplyPatchParams`: it is applied completely or not at all.
- Write new files with `$WriteFileParams`, at most {MAX_WRITE_LENGTH:,} characters per call; \
prefer one complete file to many small additions.
- Delete files that you no longer need with `$RmParams`.
- Run programs with `$ShellExecuteParams`; their changes to the workspace count as yours.
- Run commands with `$BashParams`; their changes to the workspace count as yours.
"""
_ALWAYS = """\
- A failed call changes nothing: read its message, correct the call and try again.
- Keep binary files few and small, and do not copy large repositories or assets here."""


def tool_guidance(dialect: Dialect, reports: Sequence[MountReport], *, is_new: bool) -> str:
    """Return the text for a workspace with tools.

    Args:
        dialect: The tools that are there.
        reports: What was mounted.
        is_new: Whether nothing was there before.
    """
    paragraphs = [
        "You have a workspace for files. Paths are relative to its root and use `/`.",
        _beginning(reports, is_new),
        dialect.fill(_TOOLS) + "\n" + _ALWAYS,
        describe_mounts(reports),
    ]
    return "\n\n".join(each for each in paragraphs if each)


def native_guidance(reports: Sequence[MountReport], *, is_new: bool) -> str:
    """Return the text for a workspace that is reached with tools which are not ours."""
    paragraphs = [
        "Your working directory is your workspace: read, change and create files there with your"
        " own tools.",
        _beginning(reports, is_new),
        describe_mounts(reports),
    ]
    return "\n\n".join(each for each in paragraphs if each)


def describe_mounts(reports: Sequence[MountReport]) -> str:
    """Return what was copied in from the host, with the first names of each mount."""
    if not reports:
        return ""
    previews = (report.preview(_PREVIEWED) for report in reports)
    return "Copied into the workspace:\n\n" + "\n\n".join(previews)


def _beginning(reports: Sequence[MountReport], is_new: bool) -> str:
    if reports and is_new:
        return (
            "It starts with copies of the files listed below. No other host files can be added"
            " later, and the originals do not change."
        )
    if is_new:
        return "It starts empty: create the files you need. No host files can be added later."
    return "It contains the files to work on."


class FilesystemSection(MarkdownSection[None]):
    """A section that brings a filesystem; the base of all that do.

    Bound to a session, it keeps the session's `VirtualFileSystem` in step with the files and
    refuses calls from other sessions; without one it serves any. A subclass says in
    `_create_backend` which filesystem it brings, or one is given.
    """

    def __init__(
        self,
        *,
        title: str = "Workspace",
        key: str | None = None,
        session: Session | None = None,
        filesystem: Filesystem | None = None,
        mounts: Sequence[HostMount] = (),
        allowed_host_roots: HostRoots | None = None,
        dialect: DialectName = "wink",
        settings: ToolSettings = DEFAULT_SETTINGS,
        ascii_paths: bool | None = None,
        extra_handlers: Mapping[type[Any], Handler] | None = None,
        snapshot_dir: Path | None = None,
        template: str | None = None,
        tools: Sequence[Tool[Any, Any]] | None = None,
        children: Sequence[Section[Any]] = (),
        enabled: Callable[..., bool] | None = None,
        accepts_overrides: bool = False,
    ) -> None:
        """Bring a workspace.

        Args:
            title: The heading.
            key: Its name in override files; made from the title if omitted.
            session: Whose workspace it is.
            filesystem: The workspace, unless the class makes it.
            mounts: What is copied in from the host, now and at every reset of the session.
            allowed_host_roots: Below which directories mounts may be; omitted, the current one.
            dialect: Whose names and parameters the tools have.
            settings: What the tools allow and show.
            ascii_paths: Instead of the one in `settings`: new names must be ASCII.
            extra_handlers: Handlers for further requests that the dialect knows, a shell for
                example.
            snapshot_dir: Where the archives of `snapshots` go.
            template: The text, instead of our own.
            tools: The tools, instead of those of the dialect.
            children: The sections below it.
            enabled: Asked whether it is part of the prompt.
            accepts_overrides: Whether its text may be replaced by a stored one.

        Raises:
            PromptError: There is no such dialect, or an argument is of another type.
            PathEscapeError: A mount is below no allowed directory.
            LimitExceededError: A mount is too large.
            OSError: A mount cannot be read.
        """
        owner = type(self).__name__
        check_argument(owner, "title", title, str)
        check_argument(owner, "key", key, str, or_none=True)
        check_argument(owner, "session", session, Session, or_none=True)
        check_argument(owner, "filesystem", filesystem, Filesystem, or_none=True)
        check_argument(owner, "settings", settings, ToolSettings)
        check_argument(owner, "ascii_paths", ascii_paths, bool, or_none=True)
        check_argument(owner, "extra_handlers", extra_handlers, Mapping, or_none=True)
        check_argument(owner, "snapshot_dir", snapshot_dir, (str, os.PathLike), or_none=True)
        check_argument(owner, "template", template, str, or_none=True)
        check_argument(owner, "dialect", dialect, str)
        _check_roots(owner, allowed_host_roots)
        if ascii_paths is not None:
            settings = replace(settings, ascii_paths=ascii_paths)
        self._session = session
        self._given = filesystem
        self._mounts = check_items(owner, "mounts", mounts, HostMount)
        self._roots = allowed_host_roots
        self._dialect: DialectName = dialect
        self._settings = settings
        self._extra_handlers = dict(extra_handlers or {})
        self._snapshot_dir = snapshot_dir
        self._template, self._tools = template, tools
        self._backend: Filesystem | None = None
        self._follower: ProjectionUpdater | None = None
        self._manager: SnapshotManager | None = None
        self._reports: tuple[MountReport, ...] = ()
        self._unfilled: Exception | None = None
        self._stop: Callable[[], None] | None = None
        made = self._make_tools() if tools is None else tools
        try:
            if session is not None or mounts:
                self._begin()
            super().__init__(
                title=title,
                key=key,
                template=self._text() if template is None else template,
                tools=made,
                children=children,
                enabled=enabled,
                accepts_overrides=accepts_overrides,
            )
        except BaseException:
            self.close()
            raise

    @property
    def filesystem(self) -> Filesystem:
        """The workspace; made when it is first asked for."""
        if self._backend is None:
            self._begin()
        assert self._backend is not None
        return self._backend

    @property
    def snapshots(self) -> SnapshotManager:
        """Named archives of the workspace.

        Raises:
            TypeError: The filesystem has no archives.
        """
        if self._manager is None:
            filesystem = self.filesystem
            if not isinstance(filesystem, Archivable):
                raise TypeError(f"A {type(filesystem).__name__} has no archives")
            self._manager = SnapshotManager(filesystem, self._snapshot_dir)
        return self._manager

    @property
    def mount_reports(self) -> tuple[MountReport, ...]:
        """What was mounted, and what was left out."""
        return self._reports

    @property
    def dialect(self) -> DialectName:
        """Whose names and parameters the tools have."""
        return self._dialect

    @property
    def session(self) -> Session | None:
        """Whose workspace it is; None if it serves any session."""
        return self._session

    def clone(self, *, session: Session | None = None, bus: EventBus | None = None) -> Self:
        """Return one with a workspace of its own, mounts applied again, for another session.

        A filesystem that was given is shared, since it cannot be made again.

        Raises:
            ValueError: `bus` is not the session's own.
        """
        if session is not None and bus is not None and session.bus is not bus:
            raise ValueError("bus must be the bus of the session that the section is for")
        return type(self)(**self._made_with(), session=session)

    def close(self) -> None:
        """Follow the files no more, and let go of the workspace if the section made it."""
        if self._stop is not None:
            self._stop()
            self._stop = None
        if self._follower is not None:
            self._follower.close()
            self._follower = None
        backend, self._backend = self._backend, None
        self._manager = self._unfilled = None
        if backend is not None and backend is not self._given:
            self._discard(backend)

    # --- what a subclass says ---

    def _create_backend(self) -> Filesystem:
        """Return the workspace, empty or as it is to be worked on."""
        if self._given is None:
            raise PromptError(f"{type(self).__name__} needs a filesystem")
        return self._given

    def _discard(self, backend: Filesystem) -> None:
        """Let go of what `_create_backend` made."""
        if isinstance(backend, Closable):
            backend.close()

    @property
    def _starts_new(self) -> bool:
        """Whether nothing but mounts is there at the beginning, and a reset begins anew."""
        return False

    def _is_gone(self, backend: Filesystem) -> bool:
        """Whether what `_create_backend` made was taken away, and has to be made again."""
        return False

    def _filling(self, backend: Filesystem) -> AbstractContextManager[Filesystem]:
        """Return what mounts are copied to, and files removed from, at a reset."""
        return nullcontext(backend)

    def _make_tools(self) -> tuple[Tool[Any, Any], ...]:
        return filesystem_tools(
            self._dialect,
            settings=self._settings,
            binding=self._bound,
            extra_handlers=self._extra_handlers,
        )

    def _text(self) -> str:
        dialect = create_dialect(self._dialect, handlers={**HANDLERS, **self._extra_handlers})
        text = tool_guidance(dialect, self._reports, is_new=self._starts_new)
        return text.replace("$", "$$")

    def _made_with(self) -> dict[str, Any]:
        """Return the arguments that make another one like this, but for the session."""
        return {
            "title": self.title,
            "key": self.key,
            "filesystem": self._given,
            "mounts": self._mounts,
            "allowed_host_roots": self._roots,
            "dialect": self._dialect,
            "settings": self._settings,
            "extra_handlers": self._extra_handlers,
            "snapshot_dir": self._snapshot_dir,
            "template": self._template,
            "tools": self._tools,
            "children": self.children,
            "enabled": self._enabled,
            "accepts_overrides": self.accepts_overrides,
        }

    # --- the life of the workspace ---

    def _begin(self) -> None:
        backend = self._create_backend()
        try:
            self._mount(backend)
        except BaseException:
            if backend is not self._given:
                self._discard(backend)
            raise
        self._backend = backend
        if self._session is not None:
            self._follower = ProjectionUpdater(
                self._session, backend, root_path=_root_path(backend)
            )
            self._stop = self._session.bus.subscribe(SessionReset, self._start_over)

    def _mount(self, backend: Filesystem) -> None:
        if not self._mounts:
            return
        with self._filling(backend) as files:
            if not isinstance(files, Mountable):
                raise TypeError(f"A {type(files).__name__} has no mounts")
            self._reports = files.hydrate_all_from_host(self._mounts, allowed_roots=self._roots)

    def _start_over(self, event: SessionReset) -> None:
        session, backend = self._session, self._backend
        if session is None or backend is None or event.session_id != session.session_id:
            return
        if self._is_gone(backend):
            self.close()
            self._begin()
            return
        try:
            if self._starts_new:
                self._refill(backend)
        finally:
            if self._follower is not None:
                self._follower.start_over()

    def _refill(self, backend: Filesystem) -> None:
        """Make the workspace what it was at the beginning."""
        self._reports = ()
        try:
            with self._filling(backend) as files:
                for entry in files.list("."):
                    files.delete(entry.path, recursive=entry.is_directory)
            self._mount(backend)
        except Exception as error:
            self._unfilled = error
            raise
        self._unfilled = None

    def _bound(self, context: ToolContext) -> ToolContext:
        """Return the context of a call, if it is ours."""
        if self._session is not None and context.session is not self._session:
            raise ToolValidationError(
                f"{self.title} belongs to another session: {self._session!r}; use a clone of the"
                " section for this one"
            )
        if self._unfilled is not None:
            raise ToolValidationError(
                f"{self.title} could not be filled again when the session was reset:"
                f" {self._unfilled}; nothing can be done in it until a reset succeeds"
            )
        if context.filesystem is not None:
            return context
        filesystem = self.filesystem
        around = current_transaction()
        files = filesystem if around is None else around.files(filesystem)
        return replace(context, filesystem=files)


def _check_roots(owner: str, roots: object) -> None:
    """Return if `allowed_host_roots` is a sequence of paths, or None.

    Raises:
        PromptError: It is not.
    """
    if roots is not None:
        for root in check_items(owner, "allowed_host_roots", roots, object):
            check_argument(owner, "each of allowed_host_roots", root, (str, os.PathLike))


def _root_path(filesystem: Filesystem) -> str:
    return filesystem.root if isinstance(filesystem, HostBacked) else ""
