"""Workspaces in a directory of the host."""

import os
import shutil
import tempfile
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from weakincentives.contrib.tools.sections.base import FilesystemSection, native_guidance
from weakincentives.filesystem import DEFAULT_LIMITS, Filesystem, HostFilesystem, Limits
from weakincentives.prompt import Tool
from weakincentives.prompt.validation import check_argument


class HostWorkspaceSection(FilesystemSection):
    """A workspace in a directory of the host.

    Args:
        root: The directory. Omitted, a temporary one is made, emptied and filled again when
            the session is reset, and removed by `close`.
        read_only: Refuse to write; a temporary directory has only what is mounted.
        limits: What the filesystem allows.
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
        """Bring a directory; other `options` are those of `FilesystemSection`."""
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
        return _host(super().filesystem)

    @property
    def _starts_new(self) -> bool:
        return self._root is None

    def _is_gone(self, backend: Filesystem) -> bool:
        # temporary directories are swept by others too
        return self._root is None and not Path(backend.root).is_dir()

    def _filling(self, backend: Filesystem) -> AbstractContextManager[Filesystem]:
        if not self._read_only or self._root is not None:
            return nullcontext(backend)
        return HostFilesystem(backend.root, limits=self._limits)

    def _create_backend(self) -> Filesystem:
        root = self._root or tempfile.mkdtemp(prefix="wink-workspace-")
        return HostFilesystem(root, read_only=self._read_only, limits=self._limits)

    def _discard(self, backend: Filesystem) -> None:
        if self._root is None:
            _host(backend).cleanup()
        super()._discard(backend)
        if self._root is None:
            shutil.rmtree(backend.root, ignore_errors=True)

    def _made_with(self) -> dict[str, Any]:
        made = {
            **super()._made_with(),
            "root": self._root,
            "read_only": self._read_only,
            "limits": self._limits,
        }
        del made["filesystem"]
        return made


def _host(filesystem: Filesystem) -> HostFilesystem:
    assert isinstance(filesystem, HostFilesystem)  # `_create_backend` made it
    return filesystem


class ClaudeAgentWorkspaceSection(HostWorkspaceSection):
    """A workspace for an agent that brings file tools of its own; it adds none."""

    def _make_tools(self) -> tuple[Tool[Any, Any], ...]:
        return ()

    def _text(self) -> str:
        return native_guidance(self._reports, is_new=self._starts_new).replace("$", "$$")
