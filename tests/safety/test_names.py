"""Unsafe names cannot be created; existing ones work by their exact path."""

import os
from pathlib import Path

import pytest

from tests.safety.operations import OPERATIONS, Operation
from tests.safety.places import Place, temporary_names, visible
from weakincentives.filesystem import (
    BaseFilesystem,
    HostFilesystem,
    InMemoryFilesystem,
    InvalidPathError,
    LimitExceededError,
)

UNSEEN = {
    "line feed": "a\nb",
    "carriage return": "a\rb",
    "escape sequence": "a\x1b[31mb",
    "delete": "a\x7fb",
    "bell": "a\x07b",
    "next line": "a\x85b",
    "line separator": "a\u2028b",
    "right to left override": "\u202egnp.exe",
    "isolate": "a\u2066b",
    "zero width space": "x\u200by",
    "joiner": "x\u200dy",
    "byte order mark": "\ufeffx",
    "lone surrogate": "a\ud800b",
    "undecodable byte": "a\udcffb",
    "soft hyphen": "a\u00adb",
    "tag": "a\U000e0041b",
    "not composed": "e\u0301",
    "leading blank": " a",
    "trailing blank": "a ",
    "leading no-break space": "\u00a0a",
    "trailing tab": "a\t",
    "reserved": ".wink-tmp-1",
}
CREATES: dict[str, Operation] = {
    name: OPERATIONS[name]
    for name in OPERATIONS
    if name.startswith(("write", "mkdir")) or name.endswith("_to")
}
ODD_BUT_FINE = ["-rf", "--help", "@x", "CON", "NUL", "COM¹", "a.", "a:b", "~", "$HOME", "%TEMP%"]
ODD_BUT_FINE += [
    "a b",
    "'",
    '"',
    "`id`",
    "*",
    "?",
    "[x]",
    "{a,b}",
    "\\",
    "a\\b",
    "..a",
    "a..",
    "...",
]
ODD_BUT_FINE += ["<script>", "é", "名前", "\U0001f600", ".git", ".gitignore", "A", "a"]

# as they come in repositories, archives and from containers
ON_DISK = [
    b"bad-\xff\xfe",
    b"line\nfeed",
    b"escape\x1b[2J\x1b[31m",
    "bidi\u202etxt.exe".encode(),
    "zero\u200bwidth".encode(),
    "cafe\u0301".encode(),
    b" blank ",
    b"tab\t",
    b"\x7f\x01",
    b"back\\slash",
    b"n" * 255,
    b"-rf",
]


def both(place: Place) -> list[BaseFilesystem]:
    memory = InMemoryFilesystem()
    memory.write("a/f.txt", "inside\n")
    return [HostFilesystem(place.workspace), memory]


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_no_operation_takes_a_nul(place: Place, operation: Operation) -> None:
    for fs in both(place):
        for path in ("a\0b", "\0", "a/f.txt\0", "a\0/../../etc/passwd"):
            with pytest.raises(InvalidPathError, match="NUL"):
                operation(fs, path)
            assert not fs.exists(path)


@pytest.mark.parametrize("name", UNSEEN.values(), ids=UNSEEN)
def test_no_operation_creates_a_name_that_cannot_be_seen(place: Place, name: str) -> None:
    for fs in both(place):
        before = visible(fs)
        for operation in CREATES.values():
            for path in (name, f"new/{name}", f"{name}/new"):
                with pytest.raises((InvalidPathError, FileNotFoundError)):
                    operation(fs, path)
        with pytest.raises(InvalidPathError):
            fs.write(name, "x")
        assert visible(fs) == before
    assert temporary_names(place.workspace) == []


@pytest.mark.parametrize("name", ODD_BUT_FINE)
def test_odd_names_are_data(place: Place, name: str) -> None:
    (place.workspace / "a" / "f.txt").unlink()
    (place.workspace / "a").rmdir()
    for fs in (HostFilesystem(place.workspace), InMemoryFilesystem()):
        path = f"{name}/{name}"
        assert fs.write(path, "content").path == path
        assert fs.read(path).content == "content"
        assert [entry.name for entry in fs.list(name)] == [name]
        assert [match.path for match in fs.grep("content")] == [path]
        assert [match.path for match in fs.glob("**")] == [path]
        fs.move(path, f"{name}/moved")
        fs.delete(name, recursive=True)
        assert fs.list() == ()


LIMITS = [
    ("a/" * 15 + "a", None),
    ("a/" * 16 + "a", "Path depth exceeds"),
    ("x" * 80, None),
    ("x" * 81, "Path segment exceeds"),
    ("é" * 80, None),
    ("名" * 80, None),
    ("\U0001f600" * 63, None),
    ("\U0001f600" * 64, "Path segment exceeds"),
    ("d" * 81 + "/f", "Path segment exceeds"),
    ("x" * 5_000, "Path segment exceeds"),
]


@pytest.mark.parametrize(("path", "refusal"), LIMITS)
def test_limits_are_the_same_everywhere(place: Place, path: str, refusal: str | None) -> None:
    for fs in both(place):
        fs.delete("a", recursive=True)
        for operation in (OPERATIONS["mkdir"], OPERATIONS["write"]):
            if refusal is None:
                operation(fs, path)
                fs.delete(path.partition("/")[0], recursive=True)
            else:
                with pytest.raises(LimitExceededError, match=refusal):
                    operation(fs, path)
            assert fs.list() == ()


SPELLINGS = ["x/y", "/x/y", "x//y", "./x/y", "x/./y", "x/y/", "x/z/../y", "//x///y//", "x/y/."]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_the_path_reported_is_the_path_stored(place: Place, spelling: str) -> None:
    for fs in both(place):
        assert fs.write(spelling, "one").path == "x/y"
        assert fs.read(spelling).path == "x/y"
        assert fs.stat(spelling).path == "x/y"
        assert [match.path for match in fs.grep("one", path=spelling)] == ["x/y"]
        assert [entry.path for entry in fs.list("x")] == ["x/y"]


@pytest.mark.parametrize("name", ON_DISK)
def test_a_name_that_is_on_the_disk_works_by_its_exact_path(
    fs: HostFilesystem, place: Place, name: bytes
) -> None:
    Path(os.fsdecode(os.fsencode(place.workspace) + b"/" + name)).write_text("needle\n")
    [path] = [entry.path for entry in fs.list() if entry.path != "a"]
    assert os.fsencode(path) == name
    assert fs.exists(path)
    assert fs.stat(path).is_file
    assert fs.read(path).content == "needle\n"
    assert [match.path for match in fs.grep("needle")] == [path]
    assert [match.path for match in fs.grep("needle", glob="*", path=path)] == [path]
    assert [match.path for match in fs.glob("*")] == [path]
    assert [match.path for match in fs.grep("needle", use_ignore_files=True)] == [path]
    fs.write(path, "more\n", mode="append")
    fs.write(path, "other\n")
    assert fs.read(path).content == "other\n"
    fs.copy(path, "plain")
    fs.delete(path)
    assert visible(fs) == {"a": None, "a/f.txt": b"inside\n", "plain": b"other\n"}


@pytest.mark.parametrize("name", ON_DISK)
def test_a_directory_with_such_a_name_works_too(
    fs: HostFilesystem, place: Place, name: bytes
) -> None:
    inner = os.path.join(os.fsencode(place.workspace), name, name)  # noqa: PTH118 # bytes
    os.makedirs(inner)  # noqa: PTH103 # bytes
    path = os.fsdecode(name)
    if len(name) <= 80:
        fs.write(f"{path}/{path}/f", "needle")
    else:
        Path(os.fsdecode(inner), "f").write_text("needle")
    below = f"{path}/{path}/f"
    assert [match.path for match in fs.glob("**/f")] == [below]
    assert [match.path for match in fs.grep("needle")] == [below]
    assert fs.glob("*/*/") != ()
    fs.copy(path, "copied")
    assert fs.read(f"copied/{path}/f").content == "needle"
    fs.move(path, "moved")
    fs.delete("moved", recursive=True)
    fs.delete("copied", recursive=True)
    assert [entry.path for entry in fs.list()] == ["a"]


@pytest.mark.parametrize("name", ON_DISK)
def test_results_and_errors_show_such_names_escaped(
    fs: HostFilesystem, place: Place, name: bytes
) -> None:
    Path(os.fsdecode(os.fsencode(place.workspace) + b"/" + name)).write_text("needle\n")
    path = os.fsdecode(name)
    found = [fs.stat(path), *fs.list(), *fs.glob("*"), *fs.grep("needle"), fs.read(path)]
    texts = [str(each) for each in found]
    for error in (FileNotFoundError, FileExistsError):
        with pytest.raises(error) as caught:
            fs.write(path, "", mode="create") if error is FileExistsError else fs.read(path + "-")
        texts.append(str(caught.value))
    for text in texts:
        assert text.isprintable(), ascii(text)
        text.encode()


def test_hidden_names_are_invisible_to_every_operation(fs: HostFilesystem, place: Place) -> None:
    hidden = place.workspace / f".wink-tmp-0-{os.getpid()}-1-1"
    (hidden / "deep").mkdir(parents=True)
    (hidden / "deep" / "f").write_text("inside")
    for path in (hidden.name, f"{hidden.name}/deep", f"{hidden.name}/deep/f"):
        assert not fs.exists(path)
        for operation in OPERATIONS.values():
            with pytest.raises((FileNotFoundError, InvalidPathError)):
                operation(fs, path)
    assert fs.glob("**/f") == ()
    assert [entry.path for entry in fs.list()] == ["a"]
    assert hidden.exists()  # made a moment ago elsewhere: its maker may be at work
