"""The filesystem of a container passes the suites of every backend."""

import hashlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contrib.dialects.replay import Replay, tree, tree_hash
from tests.contrib.dialects.test_replay import EXPECTED, NAMES, SCRIPT
from tests.sizes import size
from weakincentives.adapters import ScriptedAdapter, ToolCall
from weakincentives.contrib.digest import digest_workspace
from weakincentives.contrib.tools import FilesystemSection, WorkspaceDigestSection
from weakincentives.contrib.tools.dialects import DialectName
from weakincentives.errors import StaleRestoreError
from weakincentives.filesystem import BaseFilesystem, Filesystem, InMemoryFilesystem, Limits
from weakincentives.filesystem.testing import (
    ArchiveDetailTests,
    ArchiveTests,
    EventTests,
    FilesystemProtocolTests,
    IgnoreFileTests,
    LinkTests,
    PartialRestoreTests,
    QuotaTests,
    ReadOnlyTests,
    SavepointTests,
    SnapshotDetailTests,
    SnapshotTests,
    SnapshotViewTests,
    SpecialFileTests,
    TextTests,
    ThreadTests,
    TransferTests,
    run_parity,
)
from weakincentives.prompt import Prompt
from weakincentives.runtime.session import Session
from weakincentives.sandbox.container import Container, PodmanSandboxConfig
from weakincentives.sandbox.container.filesystem import ContainerFilesystem


@pytest.fixture(scope="session")
def shared_container(podman: PodmanSandboxConfig) -> Iterator[Container]:
    """Start one container for all tests."""
    made = Container(podman, None)
    yield made
    made.close()


def clear(container: Container) -> None:
    found, _ = container.call("list", path="")
    container.call("batch", changes=[{"op": "remove", "path": name} for name, _ in found])


@pytest.fixture(autouse=True)
def empty_container(request: pytest.FixtureRequest, shared_container: Container) -> None:
    """Empty the workspace before every test."""
    clear(shared_container)
    if request.instance is not None:
        request.instance.container = shared_container


class TestContainer(
    FilesystemProtocolTests,
    TextTests,
    EventTests,
    TransferTests,
    LinkTests,
    SpecialFileTests,
    QuotaTests,
    ReadOnlyTests,
    ThreadTests,
    IgnoreFileTests,
    SavepointTests,
    SnapshotTests,
    SnapshotDetailTests,
    PartialRestoreTests,
    SnapshotViewTests,
    ArchiveTests,
    ArchiveDetailTests,
):
    container: Container

    def make_filesystem(self, tmp_path: Path) -> ContainerFilesystem:
        return ContainerFilesystem(self.container)

    def make_limited(self, tmp_path: Path, limits: Limits) -> ContainerFilesystem:
        return ContainerFilesystem(self.container, limits=limits)

    def make_read_only(self, filled: Filesystem) -> Filesystem:
        return ContainerFilesystem(self.container, read_only=True)

    def make_special(self, fs: BaseFilesystem, path: str) -> None:
        self.container.call("batch", changes=[{"op": "pipe", "path": path}])


@pytest.mark.double
class TestDirectoryOfContainer(
    FilesystemProtocolTests, SavepointTests, SnapshotTests, ArchiveTests
):
    """The same with a working directory below the workspace."""

    container: Container

    def make_filesystem(self, tmp_path: Path) -> ContainerFilesystem:
        return ContainerFilesystem(self.container, "/workspace/deep/er")

    def make_limited(self, tmp_path: Path, limits: Limits) -> ContainerFilesystem:
        return ContainerFilesystem(self.container, workdir="/workspace/deep/er/", limits=limits)


def test_a_working_directory_is_all_that_a_filesystem_sees_and_changes(
    shared_container: Container,
) -> None:
    whole = ContainerFilesystem(shared_container)
    whole.write("outside.txt", "outside")
    fs = ContainerFilesystem(shared_container, "/workspace/app")
    assert (fs.root, fs.list(), fs.exists("outside.txt")) == ("/workspace/app", (), False)
    fs.write("a.txt", "1")
    before = fs.snapshot()
    assert before.root_path == "/workspace/app"
    fs.move("a.txt", "b/c.txt")
    fs.write("large.bin", "x" * 40_000)
    assert [each.path for each in fs.glob("**")] == ["b/c.txt", "large.bin"]
    assert [each.path for each in whole.grep("1")] == ["app/b/c.txt"]
    fs.restore(before)
    assert [each.path for each in whole.glob("**")] == ["app/a.txt", "outside.txt"]


@pytest.mark.parametrize("workdir", ["/", "/etc", "workspace", "/workspaces", "/workspace/../etc"])
def test_a_working_directory_is_in_the_workspace(shared_container: Container, workdir: str) -> None:
    with pytest.raises((ValueError, PermissionError), match=r"workdir|escape"):
        ContainerFilesystem(shared_container, workdir)


def test_random_operations_end_in_the_same_state_as_in_memory(shared_container: Container) -> None:
    def empty() -> ContainerFilesystem:
        clear(shared_container)
        return ContainerFilesystem(shared_container)

    count = size(500, 10_000)
    assert run_parity(seed=1, count=count, subject=empty) == count


def test_large_files_are_sent_in_pieces(shared_container: Container) -> None:
    fs = ContainerFilesystem(shared_container, limits=Limits(max_write_length=100_000_000))
    data = bytes(range(256)) * 80_000
    fs.write_bytes("large", data)
    assert fs.read_bytes("large", offset=10_000_000, limit=5).content == data[10_000_000:10_000_005]
    kept = fs.snapshot()
    fs.write_bytes("large", b"small")
    fs.restore(kept)
    assert fs.content_hash("large") == hashlib.sha256(data).hexdigest()


def test_one_change_is_undone_and_a_later_one_is_named(shared_container: Container) -> None:
    clear(shared_container)
    fs = ContainerFilesystem(shared_container)
    fs.write("a", "old")
    before = fs.snapshot()
    fs.replace_content("a", b"new", expected=b"old")
    after = fs.snapshot()
    fs.write("b", "later")
    fs.restore(before, expect=after)
    assert (fs.read("a").content, fs.read("b").content) == ("old", "later")
    fs.write("a", "mine")
    with pytest.raises(StaleRestoreError, match="a"):
        fs.restore(before, expect=after)


class CountingContainer(Container):
    """Counts the files whose content is transferred."""

    loaded = 0

    def call(self, operation: str, *, data: bytes = b"", **request: Any) -> tuple[Any, bytes]:
        self.loaded += len(request["paths"]) if operation == "load" else 0
        return super().call(operation, data=data, **request)


def test_a_snapshot_transfers_only_what_has_changed(podman: PodmanSandboxConfig) -> None:
    container = CountingContainer(podman, None)
    try:
        fs = ContainerFilesystem(container)
        for number in range(20):
            fs.write(f"dir/{number}", "x" * 100)
        deadline = time.time() + 60
        container.loaded = 1
        while container.loaded and time.time() < deadline:  # until the files are old enough
            container.loaded = 0
            fs.snapshot()
        fs.write("dir/3", "changed")
        kept = fs.snapshot()
        assert container.loaded == 1
        fs.delete("dir", recursive=True)
        fs.restore(kept)
        assert fs.read("dir/3").content == "changed"
        assert len(fs.list("dir")) == 20
    finally:
        container.close()


@pytest.mark.parametrize("dialect", NAMES)
def test_a_script_leaves_the_files_of_every_other_backend_in_every_dialect(
    dialect: DialectName, shared_container: Container
):
    memory, files = InMemoryFilesystem(), ContainerFilesystem(shared_container)
    for each in (memory, files):
        Replay(dialect, each).play(*SCRIPT)
    assert tree(files) == EXPECTED
    assert tree_hash(files) == tree_hash(memory)


def test_a_digest_of_a_container_is_that_of_the_same_files_elsewhere(
    shared_container: Container,
) -> None:
    digests: list[str] = []
    for files in (ContainerFilesystem(shared_container), InMemoryFilesystem()):
        files.write(".gitignore", "*.log\n")
        files.write("Makefile", "test:\n\tpytest\n")
        files.write("pkg/core.py", "def central(x):\n    return x\n")
        files.write("pkg/use.py", "from pkg.core import central\n")
        files.write("run.log", "ignored")
        section = FilesystemSection(filesystem=files)
        session = Session()
        prompt = Prompt[Any](
            ns="tests",
            key="digest",
            sections=[section, WorkspaceDigestSection(session=session)],
        )
        script = [ToolCall("repo_map", {}, "c1"), '{"digest": "written"}']
        adapter = ScriptedAdapter(script)
        assert adapter.optimize(prompt, session=session).digest == "written"
        assert "def central(x)" in adapter.requests[-1].messages[-1].text
        digests.append(digest_workspace(files).text)
    assert digests[0] == digests[1]
    assert "`make test`" in digests[0]
