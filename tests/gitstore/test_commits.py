"""Commits: exact values are read back, and git shows one clean line."""

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.gitstore.gitcommand import git, new_repository
from tests.sizes import size
from weakincentives.gitstore.objects import ObjectError, ObjectStore
from weakincentives.gitstore.trees import (
    Commit,
    commit_references,
    decode_commit,
    encode_commit,
    tag_reference,
)

REF = "1" * 40
MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678_901, UTC)


def encoded(
    *, tag: str | None = "t", root: str = "/w", created_at: datetime = MOMENT, tree: str = REF
) -> bytes:
    return encode_commit(Commit("", tree, (), "id", 7, created_at, tag, root))


TEXTS = st.text(st.characters() | st.sampled_from('\n\r\0\x1b\u2028\u202e\udcff\\": '))


@settings(max_examples=size(100, 1_000))
@given(
    tag=st.none() | TEXTS,
    root=TEXTS,
    created_at=st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=-9))])),
)
def test_every_value_comes_back_exactly(tag: str | None, root: str, created_at: datetime) -> None:
    data = encoded(tag=tag, root=root, created_at=created_at)
    commit = decode_commit(REF, data)
    assert (commit.tag, commit.root, commit.created_at) == (tag, root, created_at)
    assert (commit.snapshot_id, commit.sequence, commit.tree) == ("id", 7, REF)
    assert b"\0" not in data


@pytest.mark.parametrize(
    ("tag", "subject"),
    [
        (None, "snapshot"),
        ("", "snapshot"),
        (" \n ", "snapshot"),
        ("before refactor", "before refactor"),
        ("a\nb\tc", "a b c"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("nul\0", "nul\\x00"),
        ("\u202eevil", "\\u202eevil"),
        ("größer", "größer"),
        ("x" * 500, "x" * 200),
    ],
)
def test_git_shows_one_clean_line_whatever_the_tag(
    tmp_path: Path, tag: str | None, subject: str
) -> None:
    repository = new_repository(tmp_path / "r")
    root = "/odd\n\udcff\0"
    with ObjectStore(repository / "objects").begin_pack() as batch:
        ref = batch.add("commit", encoded(tag=tag, root=root, tree=batch.add("tree", b"")))
        batch.finish()
    git(repository, "update-ref", "refs/heads/main", ref)
    assert git(repository, "fsck", "--strict") == ""
    assert git(repository, "log", "--format=%s") == subject + "\n"


@pytest.mark.parametrize("year", [1, 1969, 9999])
def test_git_accepts_every_date(tmp_path: Path, year: int) -> None:
    repository = new_repository(tmp_path / "r")
    moment = datetime(year, 6, 1, tzinfo=UTC)
    with ObjectStore(repository / "objects").begin_pack() as batch:
        ref = batch.add("commit", encoded(created_at=moment, tree=batch.add("tree", b"")))
        batch.finish()
    git(repository, "update-ref", "refs/heads/main", ref)
    assert git(repository, "fsck", "--strict") == ""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'id: "id"', b"id: 5"),
        (b'id: "id"', b'name: "id"'),
        (b"sequence: 7", b'sequence: "7"'),
        (b"sequence: 7", b"sequence: seven"),
        (b'tag: "t"', b"tag: [1]"),
        (b'tag: "t"', b"tag: " + b"[" * 100_000),
        (b"+00:00", b""),
        (b"2026-01-02", b"2026-13-02"),
        (b'root: "/w"', b'root: "\xff"'),
        (b'root: "/w"', b'root: "/w'),
        (b"tree 1", b"tree x"),
        (b"tree 1", b"free 1"),
        (b"tree " + b"1" * 40, b"tree " + b"1" * 40 + b"\nparent 2"),
    ],
)
def test_other_commits_and_damaged_ones_are_refused(old: bytes, new: bytes) -> None:
    data = encoded()
    assert old in data
    with pytest.raises(ObjectError):
        decode_commit(REF, data.replace(old, new))


@settings(max_examples=size(100, 1_000))
@given(data=st.binary(max_size=200), place=st.integers(0, 250))
def test_no_bytes_break_the_reader(data: bytes, place: int) -> None:
    whole = encoded()
    for raw in (data, whole[:place] + data + whole[place:], whole[:place]):
        try:
            decode_commit(REF, raw)
        except ObjectError:
            continue


def test_what_any_commit_refers_to_is_found() -> None:
    header = b"tree " + b"1" * 40 + b"\nparent " + b"2" * 40 + b"\nparent " + b"3" * 40
    data = header + b"\nauthor \xff\nencoding latin-1\n\nparent " + b"4" * 40
    assert commit_references(data) == ("1" * 40, ["2" * 40, "3" * 40])
    assert tag_reference(b"object " + b"5" * 40 + b"\ntype commit\n") == "5" * 40


@pytest.mark.parametrize("data", [b"", b"object x\n", b"type commit\n", b"1" * 40, b"\xff"])
def test_damaged_tags_are_refused(data: bytes) -> None:
    with pytest.raises(ObjectError, match="Tag is damaged"):
        tag_reference(data)
