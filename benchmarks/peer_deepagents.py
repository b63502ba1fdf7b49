# pyright: basic, reportMissingImports=false
"""deepagents: its FilesystemBackend on disk, its State and Store backends in memory."""

import base64
import posixpath
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deepagents.backends import FilesystemBackend, StateBackend, StoreBackend
from deepagents.backends.utils import create_file_data
from deepagents.middleware.filesystem import FilesystemState
from langchain_core.runnables.config import var_child_runnable_config
from langgraph.config import get_config
from langgraph.graph import END, START, StateGraph
from langgraph.store.memory import InMemoryStore

from benchmarks.harness import UnfinishedError
from benchmarks.subject import Subject


class _DeepAgents(Subject):
    """What all its backends share: paths start with `/`, grep is literal, errors are values."""

    literal_only = True

    def __init__(self, backend: Any) -> None:
        self.backend = backend

    def list_folder(self, path: str) -> object:
        return self.backend.ls(f"/{path}")

    def names(self, raw: Any) -> list[str]:
        return sorted(
            posixpath.basename(entry["path"].rstrip("/")) for entry in _sound(raw).entries
        )

    def read(self, path: str) -> object:
        return self.backend.read(f"/{path}")

    def text(self, raw: Any) -> str:
        return _sound(raw).file_data["content"]

    def read_page(self, path: str, offset: int, limit: int) -> object:
        return self.backend.read(f"/{path}", offset, limit)

    def page(self, raw: Any) -> tuple[str, int]:
        return _sound(raw).file_data["content"], raw.total_lines

    def write(self, path: str, text: str) -> object:
        return _sound(self.backend.write(f"/{path}", text))

    def glob(self, pattern: str) -> object:
        return self.backend.glob(pattern)

    def paths(self, raw: Any) -> list[str]:
        return sorted(match["path"].lstrip("/") for match in _sound(raw).matches)

    def grep(self, pattern: str) -> object:
        return self.backend.grep(pattern)

    def hits(self, raw: Any) -> list[tuple[str, int]]:
        return sorted((match["path"].lstrip("/"), match["line"]) for match in _sound(raw).matches)

    def hydrate(self, root: str) -> object:
        base = Path(root)
        found = (path for path in base.rglob("*") if path.is_file())
        self.load({path.relative_to(base).as_posix(): path.read_bytes() for path in found})
        return None

    def load(self, files: Mapping[str, bytes]) -> None:
        self.backend.upload_files([(f"/{path}", content) for path, content in files.items()])


class DeepAgentsHost(_DeepAgents):
    """FilesystemBackend in its default, virtual mode."""

    name = "deepagents FilesystemBackend"

    def __init__(self, root: Path) -> None:
        """Open the directory."""
        super().__init__(FilesystemBackend(root_dir=root, virtual_mode=True))


class DeepAgentsStore(_DeepAgents):
    """StoreBackend over LangGraph's in-memory store."""

    name = "deepagents StoreBackend"

    def __init__(self) -> None:
        """Start with an empty store."""
        self.store = InMemoryStore()
        super().__init__(StoreBackend(store=self.store, namespace=lambda _runtime: ("files",)))

    def total(self, raw: object) -> tuple[int, int]:
        """How many files and bytes came in."""
        items = self.backend._search_store_paginated(  # noqa: SLF001  no public way to list all
            self.store, ("files",), page_size=10**9
        )
        found = self.backend.download_files([item.key for item in items])
        return len(found), sum(len(item.content) for item in found)


class DeepAgentsState(_DeepAgents):
    """StateBackend, which only works inside a running graph: we borrow the context of one."""

    name = "deepagents StateBackend"

    def __init__(self) -> None:
        """Start with an empty state."""
        super().__init__(StateBackend())
        self.config = _graph_context({})

    def load(self, files: Mapping[str, bytes]) -> None:
        """Pass the files on invoke, as its documentation says."""
        self.config = _graph_context({f"/{path}": _data(raw) for path, raw in files.items()})

    def total(self, raw: object) -> tuple[int, int]:
        """How many files and bytes came in."""
        paths = list(self._inside(self.backend._read_files))  # noqa: SLF001  the same
        found = self._inside(self.backend.download_files, paths)
        return len(found), sum(len(item.content) for item in found)

    def list_folder(self, path: str) -> object:
        """List a folder."""
        return self._inside(super().list_folder, path)

    def read(self, path: str) -> object:
        """Read a small file."""
        return self._inside(super().read, path)

    def write(self, path: str, text: str) -> object:
        """Create or overwrite a file."""
        return self._inside(super().write, path, text)

    def glob(self, pattern: str) -> object:
        """Find files."""
        return self._inside(super().glob, pattern)

    def grep(self, pattern: str) -> object:
        """Find lines."""
        return self._inside(super().grep, pattern)

    def _inside(self, call: Any, *arguments: Any) -> Any:
        token = var_child_runnable_config.set(self.config)
        try:
            return call(*arguments)
        finally:
            var_child_runnable_config.reset(token)


def _graph_context(files: dict[str, Any]) -> Any:
    """Run a graph with these files in its state and return the context its node saw."""
    seen: list[Any] = []

    def node(state: Any) -> dict[str, Any]:
        del state  # the context is what is wanted
        seen.append(get_config())
        return {}

    graph = StateGraph(FilesystemState)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    graph.add_edge("node", END)
    graph.compile().invoke({"files": files, "messages": []})
    return seen[0]


def _data(content: bytes) -> Any:
    """A file as its state keeps it: text, or base64."""
    try:
        return create_file_data(content.decode())
    except UnicodeDecodeError:
        return create_file_data(base64.b64encode(content).decode(), encoding="base64")


def _sound(raw: Any) -> Any:
    """Return the result, or raise what it only says.

    Raises:
        UnfinishedError: The answer was cut off.
        RuntimeError: The result is an error.
    """
    if raw.error:
        raise RuntimeError(raw.error)
    if getattr(raw, "truncated", False):
        raise UnfinishedError("gave up and returned a part")
    return raw
