"""The base class of workspace sections, and the guidance that they render for the model.

A section owns a filesystem, binds its tools to one session, applies mounts, and resets the
files together with the session. Guidance mentions a tool only if the section offers it.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypedDict, Unpack

from weakincentives.contrib.tools.context import (
    DEFAULT_SETTINGS,
    Dialect,
    Handler,
    SpecHandler,
    ToolSettings,
)
from weakincentives.contrib.tools.dialects import DialectName
from weakincentives.contrib.tools.file_projection import ProjectedFiles, ProjectionUpdater
from weakincentives.contrib.tools.suite import HANDLERS, create_dialect, filesystem_tools
from weakincentives.errors import ToolValidationError
from weakincentives.filesystem import (
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
from weakincentives.prompt import (
    MarkdownSection,
    Section,
    Tool,
    ToolContext,
    check_argument,
    check_items,
)
from weakincentives.runtime import EventBus, SessionReset, current_transaction
from weakincentives.runtime.session import Session

_PREVIEW_ENTRIES = 20
_TOOL_GUIDANCE = """\
- Find your way in unfamiliar code with `$RepoMapParams`.
- Explore with `$LsParams` before you read or write, one directory at a time.
- Read a file with `$ReadFileParams` before you change it: what you remember may be out of date.
- Make independent calls in one reply, such as several reads and searches.
- Changes that `$ShellExecuteParams` makes in the workspace are part of your work.
- Changes that `$BashParams` makes in the workspace are part of your work.
- A failed call changes nothing: read its message and correct the call."""
_NEW_GUIDANCE = """\
- Write each file completely, in one call of `$WriteFileParams`, not in many small additions.
- Use `$RmParams` to delete files that you made and no longer need.
- Keep binary files few and small, and do not copy large repositories or assets here."""


def tool_guidance(dialect: Dialect, reports: Sequence[MountReport], *, is_new: bool) -> str:
    """Return the guidance for a workspace that is used through our tools.

    If it `is_new`, it starts with nothing but the mounts.
    """
    rules = (_TOOL_GUIDANCE, _NEW_GUIDANCE) if is_new else (_TOOL_GUIDANCE,)
    paragraphs = [
        f"{_describe_start(reports, is_new=is_new)} Paths are relative to its root and use `/`.",
        "\n".join(map(dialect.fill, rules)),
        describe_mounts(reports),
    ]
    return "\n\n".join(each for each in paragraphs if each)


def native_guidance(reports: Sequence[MountReport], *, is_new: bool) -> str:
    """Return the guidance for a workspace that an agent uses through its own tools."""
    paragraphs = [
        "Your working directory is your workspace: read, change and create files there with your"
        " own tools.",
        _describe_start(reports, is_new=True) if is_new else "",
        describe_mounts(reports),
    ]
    return "\n\n".join(each for each in paragraphs if each)


def describe_mounts(reports: Sequence[MountReport]) -> str:
    """Return the list of mounts for the model, with the first entries of each."""
    if not reports:
        return ""
    previews = (report.preview(_PREVIEW_ENTRIES) for report in reports)
    return "Copied into the workspace:\n\n" + "\n\n".join(previews)


def _describe_start(reports: Sequence[MountReport], *, is_new: bool) -> str:
    if reports and is_new:
        return (
            "Your workspace starts with copies of the files listed below. Nothing else can be"
            " brought in from outside, and the originals do not change."
        )
    if is_new:
        return (
            "Your workspace starts empty: create the files you need. Nothing can be brought in from"
            " outside."
        )
    return "Your workspace contains the files to work on."


class SectionOptions(TypedDict, total=False):
    """The arguments that sections hand on as they are."""

    children: Sequence[Section[Any]]
    """The sections below it."""
    enabled: Callable[..., bool] | None
    """Returns whether the section is part of the prompt."""
    accepts_overrides: bool
    """Whether a stored text may replace its own."""


def without_overrides(options: SectionOptions) -> SectionOptions:
    """Return options with which no stored text replaces a section's own, unless they say so."""
    return {"accepts_overrides": False, **options}


class RecreatedSection(Section[None]):
    """A section with resources: a clone is created with the same arguments, but for the session."""

    _arguments: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Keep the arguments for clones."""
        section = super().__new__(cls)
        section._arguments = args, options
        return section

    def clone(self, *, session: Session | None = None, bus: EventBus | None = None) -> Self:
        """Return a section for another session, with resources of its own and cloned children.

        Raises:
            ValueError: `bus` is not the bus of `session`.
        """
        return self._recreate(session, bus)

    def _recreate(self, session: Session | None, bus: EventBus | None, **changed: Any) -> Self:
        if session is not None and bus is not None and session.bus is not bus:
            raise ValueError("bus must be the bus of the given session")
        args, options = self._arguments
        children = tuple(each.clone(session=session, bus=bus) for each in self.children)
        if children:
            changed["children"] = children
        return type(self)(*args, **{**options, "session": session, **changed})


class FilesystemSection(RecreatedSection, MarkdownSection[None]):
    """A prompt section with a filesystem and its tools; the base class of workspace sections.

    Bound to a session, it keeps the session's `VirtualFileSystem` up to date and rejects
    calls from other sessions; without a session it serves any. Pass a filesystem, or
    override `_create_backend` in a subclass.

    Args:
        title: The heading.
        key: Its name in override files; derived from the title if omitted.
        session: The session that the workspace belongs to; None serves any session.
        filesystem: The workspace, unless the subclass creates it.
        mounts: Files to copy from the host, now and at every reset of the session.
        allowed_host_roots: Directories that mounts may come from; by default the current
            directory.
        dialect: The names and parameters of the tools.
        settings: Limits and rules of the tools.
        ascii_paths: Whether new names must be ASCII; overrides `settings`.
        extra_handlers: Handlers for further requests that the dialect knows; a shell, for example.
        projected_files: The files in the session's `VirtualFileSystem`: all, or, where listing a
            large workspace takes too long, those that are changed.
        snapshot_dir: The directory for the archives of `snapshots`.
        template: A text to use instead of the guidance.
        tools: Tools to use instead of those of the dialect; for a session, those of the suite are
            bound to it.
        options: See `SectionOptions`; no stored text replaces that of the section by default.
    """

    _backend: Filesystem | None = None
    _updater: ProjectionUpdater | None = None
    _manager: SnapshotManager | None = None
    _reports: tuple[MountReport, ...] = ()
    _reset_error: Exception | None = None
    _unsubscribe: Callable[[], None] | None = None

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
        projected_files: ProjectedFiles = "all",
        snapshot_dir: Path | None = None,
        template: str | None = None,
        tools: Sequence[Tool[Any, Any]] | None = None,
        **options: Unpack[SectionOptions],
    ) -> None:
        """Set up the workspace.

        Raises:
            PromptError: The dialect is unknown, or an argument has the wrong type.
            PathEscapeError: A mount is outside the allowed directories.
            LimitExceededError: A mount is too large.
            OSError: A mount cannot be read.
        """
        owner = type(self).__name__
        check_argument(owner, "key", key, str, or_none=True)
        check_argument(owner, "session", session, Session, or_none=True)
        check_argument(owner, "filesystem", filesystem, Filesystem, or_none=True)
        check_argument(owner, "settings", settings, ToolSettings)
        check_argument(owner, "ascii_paths", ascii_paths, bool, or_none=True)
        check_argument(owner, "extra_handlers", extra_handlers, Mapping, or_none=True)
        check_argument(owner, "snapshot_dir", snapshot_dir, (str, os.PathLike), or_none=True)
        check_argument(owner, "template", template, str, or_none=True)
        check_argument(owner, "dialect", dialect, str)
        check_argument(owner, "projected_files", projected_files, str)
        roots = () if allowed_host_roots is None else allowed_host_roots
        for root in check_items(owner, "allowed_host_roots", roots, object):
            check_argument(owner, "each of allowed_host_roots", root, (str, os.PathLike))
        if ascii_paths is not None:
            settings = replace(settings, ascii_paths=ascii_paths)
        self._session = session
        self._provided = filesystem
        self._host_mounts = check_items(owner, "mounts", mounts, HostMount)
        self._roots = allowed_host_roots
        self._dialect: DialectName = dialect
        self._settings = settings
        self._extra_handlers = dict(extra_handlers or {})
        self._projected_files: ProjectedFiles = projected_files
        self._snapshot_dir = snapshot_dir
        offered = (
            self._create_tools()
            if tools is None
            else tuple(map(self._bind_tool, check_items(owner, "tools", tools, Tool[Any, Any])))
        )
        try:
            if session is not None or mounts:
                self._open()
            super().__init__(
                title=title,
                key=key,
                template=self._render_guidance() if template is None else template,
                tools=offered,
                **without_overrides(options),
            )
        except BaseException:
            self.close()
            raise

    @property
    def filesystem(self) -> Filesystem:
        """The workspace; created on first access."""
        if self._backend is None:
            self._open()
        assert self._backend is not None
        return self._backend

    @property
    def snapshots(self) -> SnapshotManager:
        """Named archives of the workspace.

        Raises:
            TypeError: The filesystem does not support archives.
        """
        if self._manager is None:
            filesystem = self.filesystem
            if not isinstance(filesystem, Archivable):
                raise TypeError(f"{type(filesystem).__name__} does not support archives")
            self._manager = SnapshotManager(filesystem, self._snapshot_dir)
        return self._manager

    @property
    def mount_reports(self) -> tuple[MountReport, ...]:
        """What each mount copied and what it left out."""
        return self._reports

    @property
    def dialect(self) -> DialectName:
        """The dialect: names and parameters of the tools."""
        return self._dialect

    @property
    def session(self) -> Session | None:
        """The session that the workspace belongs to; None if it serves any session."""
        return self._session

    def close(self) -> None:
        """Stop updating the session, and release the workspace if the section created it."""
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        if self._updater is not None:
            self._updater.close()
            self._updater = None
        backend, self._backend = self._backend, None
        self._manager = self._reset_error = None
        if backend is not None and backend is not self._provided:
            self._discard(backend)

    # --- hooks for subclasses ---

    def _create_backend(self) -> Filesystem:
        """Return the workspace, without the mounts.

        Raises:
            NotImplementedError: No filesystem was given, and the subclass creates none.
        """
        if self._provided is None:
            raise NotImplementedError(
                f"{type(self).__name__} has no filesystem; pass one as filesystem=, or override"
                " _create_backend in a subclass"
            )
        return self._provided

    def _discard(self, backend: Filesystem) -> None:
        """Release a workspace that `_create_backend` returned."""
        if isinstance(backend, Closable):
            backend.close()

    @property
    def _is_temporary(self) -> bool:
        """Whether the workspace starts with the mounts only, and a reset returns to that start."""
        return False

    def _is_missing(self, backend: Filesystem) -> bool:
        """Return whether the workspace was removed from the host, and must be created again."""
        del backend  # for subclasses
        return False

    def _open_writable(self, backend: Filesystem) -> AbstractContextManager[Filesystem]:
        """Return the filesystem that mounts are copied to and a reset empties."""
        return nullcontext(backend)

    def _create_tools(self) -> tuple[Tool[Any, Any], ...]:
        return filesystem_tools(
            self._dialect,
            settings=self._settings,
            binding=self.bind_context,
            extra_handlers=self._extra_handlers,
        )

    def _bind_tool(self, tool: Tool[Any, Any]) -> Tool[Any, Any]:
        """Return a shared tool of the suite as one for the section's session, if it has one."""
        handler = tool.handler
        if self._session is None or not isinstance(handler, SpecHandler):
            return tool
        return replace(tool, handler=replace(handler, binding=self.bind_context))

    def _render_guidance(self) -> str:
        dialect = create_dialect(self._dialect, handlers={**HANDLERS, **self._extra_handlers})
        text = tool_guidance(dialect, self._reports, is_new=self._is_temporary)
        return text.replace("$", "$$")

    # --- life cycle ---

    def _open(self) -> None:
        backend = self._create_backend()
        try:
            self._mount(backend)
        except BaseException:
            if backend is not self._provided:
                self._discard(backend)
            raise
        self._backend = backend
        if self._session is not None:
            self._updater = ProjectionUpdater(
                self._session,
                backend,
                root_path=backend.root if isinstance(backend, HostBacked) else "",
                files=self._projected_files,
            )
            self._unsubscribe = self._session.bus.subscribe(SessionReset, self._on_reset)

    def _mount(self, backend: Filesystem) -> None:
        if not self._host_mounts:
            return
        with self._open_writable(backend) as files:
            if not isinstance(files, Mountable):
                raise TypeError(f"{type(files).__name__} does not support mounts")
            self._reports = files.hydrate_all_from_host(
                self._host_mounts, allowed_roots=self._roots
            )

    def _on_reset(self, event: SessionReset) -> None:
        session, backend = self._session, self._backend
        if session is None or backend is None or event.session_id != session.session_id:
            return
        if self._is_missing(backend):
            self.close()
            self._open()
            return
        try:
            if self._is_temporary:
                self._reset_files(backend)
        finally:
            if self._updater is not None:
                self._updater.rescan()

    def _reset_files(self, backend: Filesystem) -> None:
        """Empty the workspace and apply the mounts again."""
        self._reports = ()
        try:
            with self._open_writable(backend) as files:
                for entry in files.list("."):
                    files.delete(entry.path, recursive=entry.is_directory)
            self._mount(backend)
        except Exception as error:
            self._reset_error = error
            raise
        self._reset_error = None

    def bind_context(self, context: ToolContext) -> ToolContext:
        """Return the context of a call with the workspace in it.

        Raises:
            ToolValidationError: The call comes from another session, or the last reset failed.
        """
        check_session(self.title, self._session, context)
        if self._reset_error is not None:
            raise ToolValidationError(
                f"{self.title} cannot be used until a session reset succeeds; the last one failed:"
                f" {self._reset_error}"
            )
        if context.filesystem is not None:
            return context
        filesystem = self.filesystem
        enclosing = current_transaction()
        files = filesystem if enclosing is None else enclosing.files(filesystem)
        return replace(context, filesystem=files)


def check_session(title: str, session: Session | None, context: ToolContext) -> None:
    """Check that a call comes from the session of a section; one without a session serves any.

    Raises:
        ToolValidationError: It comes from another session.
    """
    if session is not None and context.session is not session:
        raise ToolValidationError(
            f"{title} belongs to another session: {session!r}; clone the section for this session"
        )
