"""Workspace sections for a directory on the host, permanent or temporary."""

import os
import shutil
import tempfile
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from weakincentives.contrib.tools.sections.base import FilesystemSection, native_guidance
from weakincentives.filesystem import DEFAULT_LIMITS, Filesystem, HostFilesystem, Limits
from weakincentives.prompt import Tool, check_argument


class HostWorkspaceSection(FilesystemSection):
    """A workspace in a host directory.

    Args:
        root: The directory. If omitted, a temporary one is created; a session reset empties it
            and applies the mounts again, and `close` removes it.
        read_only: Reject writes; a temporary directory then contains only the mounts.
        limits: Limits of the filesystem.
    """

    def __init__(
        self,
        *,
        root: str | os.PathLike[str] | None = None,
        title: str = "Workspace",
        key: str | None = "workspace",
        read_only: bool = False,
        limits: Limits = DEFAULT_LIMITS,
        **options: Any,
    ) -> None:
        """Set up the workspace; `options` are the other arguments of `FilesystemSection`."""
        owner = type(self).__name__
        check_argument(owner, "root", root, (str, os.PathLike), or_none=True)
        check_argument(owner, "read_only", read_only, bool)
        check_argument(owner, "limits", limits, Limits)
        self._root = root
        self._read_only = read_only
        self._limits = limits
        super().__init__(title=title, key=key, **options)

    @property
    def filesystem(self) -> HostFilesystem:
        """The workspace."""
        if self._backend is None:
            self._open()
        return self._host

    @property
    def _is_temporary(self) -> bool:
        return self._root is None

    def _is_missing(self, backend: Filesystem) -> bool:
        # the system may clean up temporary directories
        return self._root is None and not Path(backend.root).is_dir()

    def _open_writable(self, backend: Filesystem) -> AbstractContextManager[Filesystem]:
        if not self._read_only or self._root is not None:
            return nullcontext(backend)
        return HostFilesystem(backend.root, limits=self._limits)

    def _create_backend(self) -> Filesystem:
        root = self._root or tempfile.mkdtemp(prefix="wink-workspace-")
        self._host = HostFilesystem(root, read_only=self._read_only, limits=self._limits)
        return self._host

    def _discard(self, backend: Filesystem) -> None:
        if self._root is None:
            self._host.cleanup()
        super()._discard(backend)
        if self._root is None:
            shutil.rmtree(backend.root, ignore_errors=True)


class ClaudeAgentWorkspaceSection(HostWorkspaceSection):
    """A workspace for an agent with its own file tools; it offers none."""

    def _create_tools(self) -> tuple[Tool[Any, Any], ...]:
        return ()

    def _render_guidance(self) -> str:
        return native_guidance(self._reports, is_new=self._is_temporary).replace("$", "$$")
