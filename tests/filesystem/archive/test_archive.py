"""Archives of memory and host workspaces: exact, deterministic, all or nothing."""

import json
import os
import signal
import stat
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.descriptors import open_descriptors
from tests.sizes import size
from weakincentives.filesystem import (
    BaseFilesystem,
    HostFilesystem,
    InMemoryFilesystem,
    Limits,
    ReadableFilesystem,
    TimeLimitError,
    time_limit,
)
from weakincentives.filesystem.archive import format as archive_format
from weakincentives.filesystem.archive.export import FAULT_POINTS, export_archive
from weakincentives.filesystem.archive.filesystem import ArchiveFilesystem
from weakincentives.filesystem.archive.format import ArchiveError, escape, unescape
from weakincentives.filesystem.host.files import HostFile
from weakincentives.posix import fault_hook, parents_of
from weakincentives.posix.compression import DEFAULT_CODEC

DATE = datetime(2024, 1, 15, 10, 30, tzinfo=UTC)
UNLIMITED = Limits(max_write_length=1 << 40)
MEGABYTE = 1 << 20

Node = tuple[str, int, bytes | str | None]


def tree(fs: ReadableFilesystem) -> dict[str, Node]:
    """Return everything, parents first."""
    found: dict[str, Node] = {}
    pending = [""]
    for directory in pending:
        for group in fs._children(directory)[:3]:
            for name in group:
                path = f"{directory}/{name}" if directory else name
                stat = fs._lookup(path)
                assert stat is not None
                content: bytes | str | None = stat.link_target
                if stat.is_file:
                    with fs._open(path) as opened:
                        content = opened.read(0, opened.size)
                found[path] = (stat.kind, stat.permissions, content)
                if stat.is_directory:
                    pending.append(path)
    return found


def export_and_read(fs: BaseFilesystem, path: Path) -> dict[str, Node]:
    export_archive(fs, path)
    with ArchiveFilesystem(path) as state:
        return tree(state)


def manifest_of(path: Path) -> dict[str, object]:
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read("manifest.json"))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "archives").mkdir()
    return tmp_path / "archives" / "state.zip"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "workspace").mkdir()
    return tmp_path / "workspace"


@pytest.fixture
def host(workspace: Path) -> HostFilesystem:
    return HostFilesystem(workspace, limits=UNLIMITED)


SEGMENTS = st.one_of(
    st.sampled_from(["a", "b", "A", "a b", "é", "e\u0301", "%41", "%", "C:", "x\\y", "-rf"]),
    st.sampled_from(["\udc80", "a\udcff%80", "new\nline", "\x7f", "\u202e", "con", ".git", "%00"]),
    st.text(min_size=1, max_size=8).filter(lambda name: name not in {".", ".."}),
).filter(lambda name: "/" not in name and "\0" not in name and encodes(name))


def encodes(name: str) -> bool:
    try:
        return len(name.encode(errors="surrogateescape")) <= 255
    except UnicodeEncodeError:
        return False


def canonical(name: str) -> str:
    """Return what a directory listing would say: bytes that decode are characters."""
    return name.encode(errors="surrogateescape").decode(errors="surrogateescape")


PATHS = st.lists(SEGMENTS.map(canonical), min_size=1, max_size=4).map("/".join)
NODES = st.one_of(
    st.tuples(st.just("file"), st.sampled_from([0o644, 0o755, 0o600, 0o400]), st.binary()),
    st.tuples(st.just("directory"), st.just(0o755), st.none()),
    st.tuples(st.just("symlink"), st.just(0o777), PATHS | st.just("/etc/passwd")),
)


def grow(fs: BaseFilesystem, nodes: dict[str, Node]) -> None:
    """Put as many of the nodes into `fs` as fit together."""
    for path, (kind, permissions, content) in nodes.items():
        with suppress(OSError):
            for parent in parents_of(path):
                if not fs._is_directory(parent, path):
                    fs._make_directory(parent)
            if fs._lookup(path) is not None:
                continue
            if kind == "directory":
                fs._make_directory(path)
            elif isinstance(content, str):
                fs._make_link(path, content)
            else:
                fs._store(path, content or b"", permissions=permissions)


@settings(max_examples=size(60, 600))
@given(nodes=st.dictionaries(PATHS, NODES, max_size=12))
def test_any_tree_comes_back_exactly(
    nodes: dict[str, Node], tmp_path_factory: pytest.TempPathFactory
) -> None:
    base = tmp_path_factory.mktemp("tree")
    (base / "workspace").mkdir()
    memory, host = InMemoryFilesystem(), HostFilesystem(base / "workspace")
    with host:
        for fs in (memory, host):
            grow(fs, nodes)
        expected = tree(memory)
        assert export_and_read(memory, base / "memory.zip") == expected
        assert export_and_read(host, base / "host.zip") == tree(host)
        export_archive(memory, base / "memory.zip", created_at=DATE)
        export_archive(host, base / "host.zip", created_at=DATE)
        if tree(host) == expected:
            assert (base / "memory.zip").read_bytes() == (base / "host.zip").read_bytes()
        fresh = InMemoryFilesystem()
        fresh.import_archive(base / "memory.zip")
        assert tree(fresh) == expected


@given(text=PATHS | st.text().filter(encodes).map(canonical))
def test_escaped_names_are_unicode_and_come_back(text: str) -> None:
    escaped = escape(text)
    escaped.encode()
    assert unescape(escaped) == text


@given(first=PATHS, second=PATHS)
def test_two_names_are_never_escaped_to_one(first: str, second: str) -> None:
    assert (escape(first) == escape(second)) == (first == second)


@pytest.mark.parametrize(
    ("name", "escaped"),
    [
        ("src/main.py", "src/main.py"),
        ("é/😀", "é/😀"),
        ("100%", "100%"),
        ("%4", "%4"),
        ("%41", "%2541"),
        ("%fe", "%fe"),
        ("\udc80", "%80"),
        ("a\\b", "a%5Cb"),
        ("a\nb\x7f", "a%0Ab%7F"),
        ("C:/x", "C%3A/x"),
        ("a/C:", "a/C:"),
    ],
)
def test_names_are_escaped_only_where_they_must_be(name: str, escaped: str) -> None:
    assert escape(name) == escaped


def test_directories_keep_their_permissions(host: HostFilesystem, target: Path) -> None:
    host.write("private/file", "")
    Path(host.root, "private").chmod(0o700)
    assert export_and_read(host, target)["private"] == ("directory", 0o700, None)


def test_rights_to_run_as_somebody_else_are_left_out(host: HostFilesystem, target: Path) -> None:
    host.write("file", "")
    Path(host.root, "file").chmod(0o4755)
    assert export_and_read(host, target)["file"] == ("file", 0o755, b"")


def test_special_files_are_left_out(host: HostFilesystem, target: Path) -> None:
    os.mkfifo(Path(host.root, "pipe"))
    host.mkdir("dir")
    os.mkfifo(Path(host.root, "dir/pipe"))
    assert export_and_read(host, target) == {"dir": ("directory", 0o755, None)}


def test_what_killed_writers_left_is_left_out(host: HostFilesystem, target: Path) -> None:
    Path(host.root, ".wink-tmp-0-1-2-3").write_text("half")
    host.write("file", "")
    assert list(export_and_read(host, target)) == ["file"]


def test_an_archive_inside_the_workspace_does_not_hold_itself(host: HostFilesystem) -> None:
    host.write("file", "")
    assert export_archive(host, Path(host.root, "state.zip")) == 1


def test_names_longer_than_a_zip_can_hold_come_back(host: HostFilesystem, target: Path) -> None:
    name = "\udcff" * 200
    path = "/".join([name] * 120)
    for parent in [path[: 201 * count - 1] for count in range(1, 120)]:
        host._make_directory(parent)
    host._store(path, b"deep")
    assert export_and_read(host, target) == tree(host)
    assert zipfile.ZipFile(target).testzip() is None


def test_a_directory_with_a_name_longer_than_a_zip_can_hold_comes_back(target: Path) -> None:
    fs = InMemoryFilesystem()
    path = "/".join(["d" * 200] * 400)
    for parent in [path[: 201 * count - 1] for count in range(1, 401)]:
        fs._make_directory(parent)
    assert export_and_read(fs, target) == tree(fs)


# --- the container ---


def test_standard_tools_read_the_archive(host: HostFilesystem, target: Path) -> None:
    host.write("src/main.py", "print()\n" * 100)
    host.write_bytes("noise", os.urandom(5_000))
    host.mkdir("empty")
    Path(host.root, "src/main.py").chmod(0o755)
    export_archive(host, target, created_at=DATE)
    with zipfile.ZipFile(target) as archive:
        names = ["files/empty/", "files/noise", "files/src/main.py", "manifest.json"]
        assert archive.namelist() == names
        assert archive.testzip() is None
        assert archive.getinfo("files/src/main.py").date_time == (1980, 1, 1, 0, 0, 0)
        assert archive.getinfo("files/src/main.py").external_attr >> 16 == stat.S_IFREG | 0o755
        assert archive.getinfo("files/noise").compress_type == zipfile.ZIP_STORED
        extracted = target.parent / "extracted"
        archive.extractall(extracted)
    assert (extracted / "files/src/main.py").read_text() == "print()\n" * 100
    assert (extracted / "files/empty").is_dir()


def test_the_manifest_says_what_the_archive_holds(host: HostFilesystem, target: Path) -> None:
    host.write("a", "text")
    host._make_link("link", "a\udcff")
    host.mkdir("empty")
    export_archive(host, target, created_at=DATE)
    manifest = manifest_of(target)
    assert manifest.pop("packer", "zlib") == DEFAULT_CODEC.name
    (file,) = manifest.pop("files")  # pyright: ignore
    assert file.pop("packed_crc32") == f"{zlib.crc32(b'text'):08x}"  # too short to pack
    digest = "982d9e3eb996f559e633f4d194def3761d909f5a3b647d1a851fead67c32c9d1"
    assert file == {"path": "a", "size": 4, "sha256": digest, "mode": "644"}
    assert manifest == {
        "version": "1",
        "created_at": "2024-01-15T10:30:00+00:00",
        "file_count": 1,
        "total_bytes": 4,
        "links": [{"path": "link", "target": "a%FF"}],
        "directories": [{"path": "empty", "mode": "755"}],
    }


def test_the_date_is_a_moment_whatever_the_time_zone(target: Path) -> None:
    fs = InMemoryFilesystem()
    export_archive(fs, target, created_at=DATE)
    first = target.read_bytes()
    export_archive(fs, target, created_at=DATE.astimezone(timezone(timedelta(hours=5))))
    assert target.read_bytes() == first
    with pytest.raises(ValueError, match="time zone"):
        export_archive(fs, target, created_at=DATE.replace(tzinfo=None))


def test_without_a_date_the_archive_is_of_now(target: Path) -> None:
    export_archive(InMemoryFilesystem(), target)
    with ArchiveFilesystem(target) as state:
        assert abs(datetime.now(UTC) - state.manifest.created_at) < timedelta(hours=1)


@pytest.mark.parametrize("size", [0, 1, MEGABYTE - 1, MEGABYTE, MEGABYTE + 1, 5 * MEGABYTE + 7])
@pytest.mark.parametrize("kind", ["zeros", "noise", "text"])
def test_files_of_any_size_come_back(target: Path, size: int, kind: str) -> None:
    fs = InMemoryFilesystem(limits=UNLIMITED)
    pattern = {"zeros": b"\0", "noise": os.urandom(9_973), "text": b"line of text\n"}[kind]
    data = (pattern * (size // len(pattern) + 1))[:size]
    fs._store("file", data)
    assert export_and_read(fs, target) == {"file": ("file", 0o644, data)}
    assert zipfile.ZipFile(target).testzip() is None


def test_64_bit_records_are_written_where_needed(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_format, "WIDE", 1_000)
    fs = InMemoryFilesystem(limits=UNLIMITED)
    fs.write("small", "text")
    fs.write("a", "text " * 1_000)
    fs.write_bytes("large", os.urandom(3 * MEGABYTE))
    assert export_and_read(fs, target) == tree(fs)
    assert zipfile.ZipFile(target).testzip() is None


@pytest.mark.slow
def test_more_entries_than_16_bits_count_come_back(target: Path) -> None:
    fs = InMemoryFilesystem()
    for number in range(66_000):
        fs._store(f"{number:05}", b"")
    assert export_archive(fs, target) == 66_000
    with ArchiveFilesystem(target) as state:
        assert len(state.glob("*")) == 66_000
    assert len(zipfile.ZipFile(target).namelist()) == 66_001


@pytest.mark.slow
def test_what_packs_too_tightly_is_packed_so_that_it_can_be_read_again(target: Path) -> None:
    fs = InMemoryFilesystem(limits=Limits(max_write_length=1 << 40))
    zeros = bytes(40 * MEGABYTE)
    for name in "abcd":
        fs._store(name, zeros)
    fs._store("small", bytes(1000))
    export_archive(fs, target, created_at=DATE)
    with ArchiveFilesystem(target) as state:
        assert [state._lookup(name).size_bytes for name in "abcd"] == [len(zeros)] * 4  # pyright: ignore
    first = target.read_bytes()
    export_archive(fs, target, created_at=DATE, previous=target)
    assert target.read_bytes() == first


# --- a tree that changes meanwhile ---


class Restless(HostFilesystem):
    """A host directory in which something happens whenever a file is opened."""

    happening: Callable[[str], None] = staticmethod(lambda path: None)

    def _open(self, path: str):
        content = super()._open(path)
        self.happening(path)
        return content


def test_a_growing_file_is_archived_as_it_was_when_opened(workspace: Path, target: Path) -> None:
    with Restless(workspace, limits=UNLIMITED) as fs:
        fs.write_bytes("small", b"1234")
        fs.write_bytes("large", b"x" * 3 * MEGABYTE)

        def grow(path: str) -> None:
            with Path(workspace, path).open("ab") as file:
                file.write(b"more")

        fs.happening = grow
        found = export_and_read(fs, target)
    assert found["small"] == ("file", 0o644, b"1234")
    assert found["large"] == ("file", 0o644, b"x" * 3 * MEGABYTE)


def test_a_shrinking_file_is_archived_as_far_as_it_goes(workspace: Path, target: Path) -> None:
    with Restless(workspace, limits=UNLIMITED) as fs:
        fs.write_bytes("small", b"1234")
        fs.write_bytes("large", b"x" * 3 * MEGABYTE)
        fs.happening = lambda path: os.truncate(Path(workspace, path), 2)
        found = export_and_read(fs, target)
    assert (found["small"][2], found["large"][2]) == (b"12", b"xx")


def test_what_disappears_meanwhile_is_left_out(workspace: Path, target: Path) -> None:
    with Restless(workspace) as fs:
        for path in ("a", "b", "c/d"):
            fs.write(path, path)

        def remove(path: str) -> None:
            Path(workspace, "b").unlink(missing_ok=True)
            Path(workspace, "c/d").unlink(missing_ok=True)
            Path(workspace, "c/d").mkdir(exist_ok=True)

        fs.happening = remove
        found = export_and_read(fs, target)
    assert list(found) == ["a", "c", "c/d"]
    assert found["c/d"][0] == "directory"


def test_a_file_that_cannot_be_read_stops_the_export(workspace: Path, target: Path) -> None:
    class Forbidding(HostFilesystem):
        def _open(self, path: str) -> HostFile:
            raise PermissionError(13, "Permission denied", path)

    export_archive(InMemoryFilesystem(), target)
    before = target.read_bytes()
    with Forbidding(workspace) as fs:
        fs.write("file", "")
        with pytest.raises(PermissionError):
            export_archive(fs, target)
    assert target.read_bytes() == before
    assert [each.name for each in target.parent.iterdir()] == [target.name]


def test_an_export_stops_at_the_time_limit(target: Path) -> None:
    fs = InMemoryFilesystem()
    fs.write("file", "")
    with pytest.raises(TimeLimitError), time_limit(0):
        export_archive(fs, target)
    assert not target.exists()


# --- reuse ---


def both_ways(fs: BaseFilesystem, target: Path, previous: Path) -> tuple[bytes, bytes]:
    export_archive(fs, target, created_at=DATE, previous=previous)
    reused = target.read_bytes()
    export_archive(fs, target, created_at=DATE)
    return reused, target.read_bytes()


@pytest.mark.parametrize("make", [lambda path: InMemoryFilesystem(limits=UNLIMITED), None])
def test_an_archive_made_from_an_earlier_one_is_the_same(
    host: HostFilesystem, target: Path, make: Callable[[Path], BaseFilesystem] | None
) -> None:
    fs = host if make is None else make(target)
    fs.write("same", "same " * 500)
    fs.write("changed", "before " * 500)
    fs.write("gone", "gone")
    fs.write_bytes("large", b"large " * MEGABYTE)
    fs.write_bytes("noise", os.urandom(2 * MEGABYTE))
    previous = target.with_name("previous.zip")
    export_archive(fs, previous)
    fs.write("changed", "after " * 500)
    fs.write("new", "new")
    fs.delete("gone")
    reused, fresh = both_ways(fs, target, previous)
    assert reused == fresh


def test_unchanged_files_are_not_packed_again(target: Path) -> None:
    fs = InMemoryFilesystem()
    fs.write("same", "same " * 500)
    fs.write("other", "other " * 500)
    export_archive(fs, target)
    fs.write("other", "changed " * 500)
    packed: list[int] = []

    def counting(data: bytes) -> bytes:
        packed.append(len(data))
        return DEFAULT_CODEC.deflate(data)

    export_archive(fs, target, previous=target, codec=DEFAULT_CODEC._replace(deflate=counting))
    assert packed[:-1] == [4_000]  # the manifest is the last


def test_permissions_may_change_without_the_content(target: Path) -> None:
    fs = InMemoryFilesystem()
    fs.write("file", "text " * 500)
    previous = target.with_name("previous.zip")
    export_archive(fs, previous)
    fs._store("file", b"text " * 500, permissions=0o755)
    reused, fresh = both_ways(fs, target, previous)
    assert reused == fresh


def test_a_damaged_earlier_archive_does_no_damage(target: Path) -> None:
    fs = InMemoryFilesystem()
    for name in "abc":
        fs.write(name, f"{name} text " * 500)
    export_archive(fs, target, created_at=DATE)
    whole = target.read_bytes()
    previous = target.with_name("previous.zip")
    for position in range(0, len(whole), 7):
        previous.write_bytes(
            whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :]
        )
        export_archive(fs, target, created_at=DATE, previous=previous)
        assert target.read_bytes() == whole


@pytest.mark.parametrize("content", [None, b"", b"no zip", b"PK\5\6" + bytes(18)])
def test_an_earlier_archive_that_is_none_is_ignored(target: Path, content: bytes | None) -> None:
    fs = InMemoryFilesystem()
    fs.write("file", "text")
    previous = target.with_name("previous.zip")
    if content is not None:
        previous.write_bytes(content)
    assert export_archive(fs, target, previous=previous) == 1


# --- whole or not at all ---


def small_tree() -> InMemoryFilesystem:
    fs = InMemoryFilesystem(limits=UNLIMITED)
    fs.write("a/b", "text " * 500)
    fs.write_bytes("large", b"large" * MEGABYTE)
    fs.mkdir("empty")
    fs._make_link("link", "a")
    return fs


def points_of(fs: BaseFilesystem, target: Path) -> list[str]:
    points: list[str] = []
    with fault_hook(points.append):
        export_archive(fs, target, created_at=DATE)
    return points


def test_an_export_passes_every_point(target: Path) -> None:
    assert {*points_of(small_tree(), target)} > {*FAULT_POINTS}


def failing_at(index: int) -> Callable[[str], None]:
    points = iter(range(index + 1))

    def fail(_: str) -> None:
        if next(points, None) == index:
            raise OSError(28, "No space left on device")

    return fail


def test_a_fault_at_any_point_leaves_the_old_archive_or_the_new_one(target: Path) -> None:
    fs = small_tree()
    points = points_of(fs, target)
    new = target.read_bytes()
    for index in range(len(points)):
        target.write_bytes(b"old")
        with pytest.raises(OSError, match="No space"), fault_hook(failing_at(index)):
            export_archive(fs, target, created_at=DATE)
        assert target.read_bytes() in (b"old", new)
        assert [each.name for each in target.parent.iterdir()] == [target.name]


def test_a_kill_at_any_point_leaves_the_old_archive_or_the_new_one(target: Path) -> None:
    fs = small_tree()
    points = points_of(fs, target)
    new = target.read_bytes()
    seen: set[bytes] = set()
    for index in range(len(points)):
        target.write_bytes(b"old")
        assert dies_at(index, fs, target)
        seen.add(target.read_bytes())
    assert seen == {b"old", new}
    export_archive(fs, target, created_at=DATE)
    assert [each.name for each in target.parent.iterdir()] == [target.name]


def dies_at(index: int, fs: BaseFilesystem, target: Path) -> bool:
    child = os.fork()
    if child == 0:
        remaining = index

        def hook(_: str) -> None:
            nonlocal remaining
            if not remaining:
                os.kill(os.getpid(), signal.SIGKILL)
            remaining -= 1

        try:
            with fault_hook(hook):
                export_archive(fs, target, created_at=DATE)
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def test_an_archive_keeps_the_permissions_of_the_one_it_replaces(target: Path) -> None:
    target.write_bytes(b"old")
    target.chmod(0o600)
    export_archive(InMemoryFilesystem(), target)
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


def test_an_export_over_a_link_replaces_the_link(target: Path) -> None:
    outside = target.with_name("outside")
    outside.write_bytes(b"outside")
    target.symlink_to(outside)
    export_archive(InMemoryFilesystem(), target)
    assert outside.read_bytes() == b"outside"
    assert not target.is_symlink()


def test_no_descriptor_stays_open(target: Path) -> None:
    fs = small_tree()
    before = open_descriptors()
    export_archive(fs, target)
    export_archive(fs, target, previous=target)
    with ArchiveFilesystem(target) as state:
        state.read_bytes("large", limit=1)
    assert open_descriptors() == before


def test_an_archive_without_a_manifest_is_imported_as_the_files_that_it_has(target: Path) -> None:
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("files/src/main.py", "print('hi')\n")
        archive.writestr("files/empty/", "")
        archive.writestr("files/manifest.json", "{}")  # a file of that name
    fs = small_tree()
    assert fs.import_archive(target) == 2
    assert [each.path for each in fs.glob("**")] == ["manifest.json", "src/main.py"]
    assert fs.stat("empty").is_directory
    with ArchiveFilesystem(target) as state:
        assert (state.manifest.file_count, state.manifest.total_bytes) == (2, 14)
        assert state.manifest.created_at.timestamp() == int(target.stat().st_mtime)


def test_an_archive_with_nothing_at_all_does_not_empty_the_workspace(target: Path) -> None:
    with zipfile.ZipFile(target, "w"):
        pass
    fs = small_tree()
    before = [each.path for each in fs.glob("**")]
    with pytest.raises(ArchiveError, match="no files and no manifest"):
        fs.import_archive(target)
    assert [each.path for each in fs.glob("**")] == before
