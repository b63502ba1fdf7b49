"""A workspace in memory."""

from typing import Any

from weakincentives.contrib.tools.sections.base import FilesystemSection
from weakincentives.filesystem import MEMORY_LIMITS, Filesystem, InMemoryFilesystem, Limits
from weakincentives.prompt.validation import check_argument


class VfsToolsSection(FilesystemSection):
    """A workspace in memory: nothing on the host changes.

    Args:
        limits: What the filesystem allows.
    """

    def __init__(
        self,
        *,
        title: str = "Virtual Filesystem",
        key: str | None = "vfs",
        limits: Limits = MEMORY_LIMITS,
        **options: Any,
    ) -> None:
        """Bring a workspace in memory; `options` are those of `FilesystemSection`."""
        check_argument(type(self).__name__, "limits", limits, Limits)
        self._limits = limits
        super().__init__(title=title, key=key, **options)

    @property
    def filesystem(self) -> InMemoryFilesystem:
        """The workspace."""
        made = super().filesystem
        assert isinstance(made, InMemoryFilesystem)
        return made

    @property
    def _starts_new(self) -> bool:
        return True

    def _create_backend(self) -> Filesystem:
        return InMemoryFilesystem(limits=self._limits)

    def _made_with(self) -> dict[str, Any]:
        made = {**super()._made_with(), "limits": self._limits}
        del made["filesystem"]
        return made
