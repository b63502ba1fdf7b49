"""Workspace section for an in-memory filesystem."""

from typing import Any

from weakincentives.contrib.tools.sections.base import FilesystemSection
from weakincentives.filesystem import MEMORY_LIMITS, Filesystem, InMemoryFilesystem, Limits
from weakincentives.prompt import check_argument


class VfsToolsSection(FilesystemSection):
    """An in-memory workspace: nothing on the host changes.

    Args:
        limits: Limits of the filesystem.
    """

    def __init__(
        self,
        *,
        title: str = "Virtual Filesystem",
        key: str | None = "vfs",
        limits: Limits = MEMORY_LIMITS,
        **options: Any,
    ) -> None:
        """Set up the workspace; `options` are the other arguments of `FilesystemSection`."""
        check_argument(type(self).__name__, "limits", limits, Limits)
        self._limits = limits
        super().__init__(title=title, key=key, **options)

    @property
    def filesystem(self) -> InMemoryFilesystem:
        """The workspace."""
        if self._backend is None:
            self._open()
        return self._memory

    @property
    def _is_temporary(self) -> bool:
        return True

    def _create_backend(self) -> Filesystem:
        self._memory = InMemoryFilesystem(limits=self._limits)
        return self._memory
