"""Checks of many names at once agree with the check of each name."""

import stat
from collections.abc import Callable, Sequence

from hypothesis import given
from hypothesis import strategies as st

from weakincentives.filesystem.archive.format import (
    DEFLATED,
    ArchiveError,
    ZipMember,
    central_record,
    check_path,
    check_paths,
    check_records,
    escape,
    unescape,
    unescape_all,
)
from weakincentives.filesystem.archive.zip_reader import read_members
from weakincentives.filesystem.manifest import (
    FileRecord,
)

NOWHERE = ("", ".", "..", "/", "//", "C:", "\\", "\n", "\0", "\x7f", ".wink-tmp-1", "n" * 300)
SOMEWHERE = ("a", "b.c", "...", ".x", "x:y", "é", "\u200b", "\xa0", "%41", "%", "n" * 64, " ", "-")
PIECES = st.sampled_from(NOWHERE + SOMEWHERE)
NAMES = st.lists(PIECES, max_size=5).map("/".join) | st.lists(PIECES, max_size=4).map("".join)
LISTS = st.lists(NAMES, max_size=5)


def fails(check: Callable[[], object]) -> bool:
    try:
        check()
    except ArchiveError:
        return True
    return False


def directory(names: Sequence[str]) -> bytes:
    kinds = [stat.S_IFDIR if name.endswith("/") else stat.S_IFREG for name in names]
    members = [
        ZipMember(name, 0, DEFLATED, 0, 0, 0, kind, 0)
        for name, kind in zip(names, kinds, strict=True)
    ]
    return b"".join(map(central_record, members))


@given(names=LISTS)
def test_a_directory_is_refused_for_one_name(names: list[str]) -> None:
    each = [fails(lambda name=name: read_members(directory([name]), 1)) for name in names]
    twice = len({*names}) != len(names)
    assert fails(lambda: read_members(directory(names), len(names))) == (any(each) or twice)


@given(names=LISTS)
def test_names_come_out_as_they_went_in(names: list[str]) -> None:
    if not fails(lambda: read_members(directory(names), len(names))):
        assert [member.name for member in read_members(directory(names), len(names))] == names


@given(paths=LISTS)
def test_paths_are_refused_for_one_of_them(paths: list[str]) -> None:
    each = [fails(lambda path=path: check_path(path)) for path in paths]
    assert fails(lambda: check_paths(paths)) == any(each)


@given(texts=LISTS)
def test_spellings_are_refused_for_one_of_them(texts: list[str]) -> None:
    each = [fails(lambda text=text: unescape(text)) for text in texts]
    assert fails(lambda: unescape_all(texts)) == any(each)
    spelled = [escape(text) for text in texts]
    assert unescape_all(spelled) == texts


@given(
    values=st.lists(
        st.tuples(
            st.sampled_from(["0" * 64, "f" * 64, "F" * 64, "0" * 63, "0" * 65, "g" * 64, "é" * 64]),
            st.sampled_from([None, "0" * 8, "0" * 7, "0" * 9, "0x" + "0" * 6, " " * 8]),
        ),
        max_size=4,
    )
)
def test_files_are_refused_for_one_of_them(values: list[tuple[str, str | None]]) -> None:
    records = [FileRecord("a", 0, sha256, "644", crc) for sha256, crc in values]
    each = [fails(lambda record=record: check_records([record])) for record in records]
    good = [sha in ("0" * 64, "f" * 64) and crc in (None, "0" * 8) for sha, crc in values]
    assert each == [not is_good for is_good in good]
    assert fails(lambda: check_records(records)) == any(each)
