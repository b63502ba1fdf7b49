"""Copy, apply and undo preserve everything about a file besides its bytes."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from weakincentives.contrib.review import ConflictError, Review, working_copy
from weakincentives.posix import fault_hook

HOLE = 8 * 1024 * 1024


def has_attributes(path: Path) -> bool:
    try:
        os.setxattr(path, "user.test", b"x")
        os.removexattr(path, "user.test")
    except OSError:
        return False
    return True


@pytest.fixture
def marked(tmp_path: Path) -> Path:
    """Return an original with files that have extended attributes."""
    root = tmp_path / "original"
    root.mkdir()
    if not has_attributes(root):
        pytest.skip("The file system has no extended attributes")
    for name in ("modified", "mode", "removed", "renamed", "to link"):
        (root / name).write_text(f"{name} old\n")
        os.setxattr(root / name, "user.colour", name.encode())
        os.setxattr(root / name, "user.empty", b"")
    return root


def attributes(path: Path) -> dict[str, bytes]:
    return {name: os.getxattr(path, name) for name in os.listxattr(path)}


def test_extended_attributes_survive_apply_and_undo(marked: Path, tmp_path: Path) -> None:
    before = {path.name: attributes(path) for path in marked.iterdir()}
    copy = working_copy(marked, place=tmp_path / "place")
    (copy.root / "modified").write_text("new\n")
    (copy.root / "mode").chmod(0o600)
    (copy.root / "removed").unlink()
    (copy.root / "renamed").rename(copy.root / "other name")
    (copy.root / "to link").unlink()
    (copy.root / "to link").symlink_to("mode")
    with Review(copy) as review:
        review.apply()
        assert attributes(marked / "modified") == before["modified"]
        assert attributes(marked / "mode") == before["mode"]
        assert attributes(marked / "other name") == before["renamed"]
    with Review(copy) as review:
        review.undo()
    assert {path.name: attributes(path) for path in marked.iterdir()} == before


def test_extended_attributes_go_with_a_file_that_was_renamed_and_edited(
    marked: Path, tmp_path: Path
) -> None:
    text = "one line of many\n" * 30
    (marked / "renamed").write_text(text)
    before = {path.name: attributes(path) for path in marked.iterdir()}
    copy = working_copy(marked, place=tmp_path / "place")
    (copy.root / "renamed").rename(copy.root / "other name")
    (copy.root / "other name").write_text(text + "another\n")
    with Review(copy) as review:
        review.apply()
        assert attributes(marked / "other name") == before["renamed"]
        review.undo()
    assert {path.name: attributes(path) for path in marked.iterdir()} == before


def test_extended_attributes_that_were_set_meanwhile_are_a_conflict_or_stay(
    marked: Path, tmp_path: Path
) -> None:
    copy = working_copy(marked, place=tmp_path / "place")
    (copy.root / "modified").write_text("new\n")
    with Review(copy) as review:
        os.setxattr(marked / "modified", "user.colour", b"red")
        review.apply()
    assert attributes(marked / "modified")["user.colour"] == b"red"


def mark(path: Path, count: int = 1) -> Callable[[str], None]:
    """Set an attribute of a file when the work has come to where it changes the files."""
    reached = 0

    def hook(point: str) -> None:
        nonlocal reached
        reached += point in {"change.changing", "change.changed"}
        if reached == count and path.exists():
            os.setxattr(path, "user.mine", b"1")
            reached += 1

    return hook


def test_an_attribute_that_is_set_on_a_file_just_before_it_is_removed_is_a_conflict(
    marked: Path, tmp_path: Path
) -> None:
    copy = working_copy(marked, place=tmp_path / "place")
    (copy.root / "removed").unlink()
    with Review(copy) as review:
        with fault_hook(mark(marked / "removed")), pytest.raises(ConflictError):
            review.apply()
        assert attributes(marked / "removed")["user.mine"] == b"1"
        assert review.apply().paths == ("removed",)


def test_an_attribute_that_is_set_on_what_was_put_there_survives_the_rollback(
    marked: Path, tmp_path: Path
) -> None:
    copy = working_copy(marked, place=tmp_path / "place")
    (copy.root / "modified").write_text("new\n")
    set_mark = mark(marked / "modified", 2)

    def mark_and_fail(point: str) -> None:
        set_mark(point)
        if point == "change.changed":
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with Review(copy) as review:
        with fault_hook(mark_and_fail), pytest.raises(OSError, match="Input/output") as raised:
            review.apply()
        assert "modified was saved in the meantime" in raised.value.__notes__[0]
    assert attributes(marked / "modified")["user.mine"] == b"1"
    assert (marked / "modified").read_text() == "new\n"
    assert (marked / "modified.wink-kept").read_text() != "new\n"


def is_sparse(path: Path) -> bool:
    return path.stat().st_blocks * 512 < HOLE // 4


def make_sparse(path: Path, end: bytes) -> None:
    with path.open("wb") as file:
        file.write(b"beginning")
        file.seek(HOLE // 2)
        file.write(b"middle")
        file.seek(HOLE)
        file.write(end)
        file.truncate(HOLE + 5_000)


def test_sparse_files_stay_sparse(tmp_path: Path) -> None:
    root = tmp_path / "original"
    root.mkdir()
    make_sparse(root / "disk", b"one")
    make_sparse(root / "gone", b"one")
    copy = working_copy(root, place=tmp_path / "place")
    assert is_sparse(copy.root / "disk")
    assert (copy.root / "disk").read_bytes() == (root / "disk").read_bytes()
    old = (root / "disk").read_bytes()
    make_sparse(copy.root / "disk", b"two")
    make_sparse(copy.root / "new", b"two")
    (copy.root / "gone").unlink()
    with Review(copy) as review:
        review.apply()
        for name in ("disk", "new"):
            assert is_sparse(root / name)
            assert (root / name).read_bytes() == (copy.root / name).read_bytes()
        review.undo()
    assert is_sparse(root / "disk")
    assert is_sparse(root / "gone")
    assert (root / "disk").read_bytes() == old


@pytest.mark.parametrize("size", [0, 1, 4_095, 4_096, 4_097, 1_048_576, 1_048_577, 1_052_672])
@pytest.mark.parametrize("fill", [b"\0", b"x", b"x" + b"\0" * 5_000])
def test_every_size_is_copied_to_the_byte(tmp_path: Path, size: int, fill: bytes) -> None:
    root = tmp_path / "original"
    root.mkdir()
    content = (fill * (size // len(fill) + 1))[:size]
    (root / "file").write_bytes(content)
    copy = working_copy(root, place=tmp_path / "place")
    assert (copy.root / "file").read_bytes() == content
    (copy.root / "file").write_bytes(content[::-1] + b"\0")
    with Review(copy) as review:
        review.apply()
    assert (root / "file").read_bytes() == content[::-1] + b"\0"
