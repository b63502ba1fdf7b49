"""Workspace paths."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives.filesystem import (
    InvalidPathError,
    LimitExceededError,
    Limits,
    PathEscapeError,
    VfsPath,
    normalize_path,
    validate_path,
)
from weakincentives.posix import display_path, parents_of, parse_displayed_path


@pytest.mark.parametrize(
    ("given_path", "normal"),
    [
        ("a/b/../c", "a/c"),
        ("", ""),
        (".", ""),
        ("/", ""),
        ("./a", "a"),
        ("/a/b", "a/b"),
        ("a//b/", "a/b"),
        ("a/./b", "a/b"),
        ("a/..", ""),
        (".hidden/x", ".hidden/x"),
        ("a/.hidden", "a/.hidden"),
        ("...", "..."),
        ("a/..b", "a/..b"),
        ("-rf", "-rf"),
        ("a\\b", "a\\b"),
    ],
)
def test_a_path_has_one_normal_form(given_path: str, normal: str) -> None:
    assert normalize_path(given_path) == normal


@pytest.mark.parametrize("path", ["..", "../x", "a/../../x", "/..", "/../etc/passwd", "./../x"])
def test_a_path_that_climbs_out_is_refused(path: str) -> None:
    with pytest.raises(PathEscapeError, match="escapes root") as caught:
        normalize_path(path)
    assert isinstance(caught.value, PermissionError)


def test_a_nul_character_is_no_path() -> None:
    with pytest.raises(ValueError, match="NUL"):
        normalize_path("a\0b")


def test_a_path_is_a_string() -> None:
    with pytest.raises(TypeError, match="must be a string, not int"):
        normalize_path(3)  # pyright: ignore[reportArgumentType] # that is the point


@given(st.lists(st.sampled_from(["a", "b", ".", "", "..", ".x", "x."]), max_size=12))
def test_normalizing_agrees_with_a_plain_walk_and_is_stable(segments: list[str]) -> None:
    kept: list[str] = []
    for segment in segments:
        if segment == "..":
            if not kept:
                with pytest.raises(PathEscapeError):
                    normalize_path("/".join(segments))
                return
            kept.pop()
        elif segment not in {"", "."}:
            kept.append(segment)
    normal = normalize_path("/".join(segments))
    assert normal == "/".join(kept)
    assert normalize_path(normal) == normal


@pytest.mark.parametrize(
    "name",
    [
        "a\nb",
        "a\rb",
        "a\x1b[31m",
        "a\x7f",
        "\u202egnp.exe",
        "x\u200by",
        "x\ufeff",
        "\ud800",
        "a\u2028b",
        "a\u3164b",
        "\U000e0041",
        " a",
        "a ",
        "a\u00a0",
        "cafe\u0301",
        ".wink-tmp-1",
    ],
)
def test_a_name_that_deceives_is_not_created(name: str) -> None:
    with pytest.raises(InvalidPathError):
        validate_path(f"src/{name}")


@pytest.mark.parametrize(
    "name", ["caf\u00e9", "日本語", "a b", "-rf", "CON", "a:b", "a.", "@x", "😀"]
)
def test_an_ordinary_name_may_be_created(name: str) -> None:
    assert validate_path(f"src/{name}") == f"src/{name}"


def test_depth_and_length_are_bounded() -> None:
    assert validate_path("/".join(["d"] * 16))
    with pytest.raises(LimitExceededError, match="Path depth exceeds 16"):
        validate_path("/".join(["d"] * 17))
    assert validate_path("x" * 80)
    with pytest.raises(LimitExceededError, match="Path segment exceeds 80"):
        validate_path("x" * 81)


def test_a_segment_that_no_disk_can_hold_is_refused_everywhere() -> None:
    with pytest.raises(LimitExceededError, match="Path segment exceeds 255 bytes"):
        validate_path("😀" * 80)


def test_limits_can_be_lifted() -> None:
    deep = "/".join(["x" * 100] * 20)
    assert validate_path(deep, Limits(max_path_depth=20, max_segment_length=100)) == deep


def test_what_cannot_be_seen_is_shown_escaped() -> None:
    assert display_path("") == "."
    assert display_path("src/main.py") == "src/main.py"
    assert display_path("caf\u00e9") == "caf\u00e9"
    assert display_path("a\nb") == "a\\nb"
    assert display_path("a\x1b[31m") == "a\\x1b[31m"
    assert display_path("\u202egnp") == "\\u202egnp"
    assert display_path("bad\udcff") == "bad\\xff"
    assert display_path("a\\b") == "a\\\\b"
    assert display_path("a\u00a0b") == "a\\u00a0b"
    assert display_path("a\u3164\ufe0f\U000e0101") == "a\\u3164\\ufe0f\\U000e0101"


@given(st.text())
def test_what_is_shown_can_always_be_printed(text: str) -> None:
    assert display_path(text).isprintable()
    assert display_path(text).encode()


@given(st.text(), st.text())
def test_two_names_are_never_shown_alike(one: str, other: str) -> None:
    if one != other and "." not in {one, other}:
        assert display_path(one) != display_path(other)


def test_the_parents_of_a_path_come_outermost_first() -> None:
    assert list(parents_of("a/b/c")) == ["a", "a/b"]
    assert list(parents_of("a")) == []


def test_a_strict_path_is_its_segments() -> None:
    path = VfsPath(("src", "main.py"))
    assert str(path) == "src/main.py"
    assert VfsPath.parse("src//main.py") == path


@pytest.mark.parametrize("path", ["/abs", "a/../b", "./a", "caf\u00e9", "a\nb", "a/ b"])
def test_a_strict_path_refuses_what_is_absolute_relative_or_not_ascii(path: str) -> None:
    with pytest.raises(InvalidPathError):
        VfsPath.parse(path)


def test_a_strict_path_is_bounded() -> None:
    with pytest.raises(LimitExceededError, match="Path depth exceeds"):
        VfsPath(("a",) * 17)


@given(st.text(st.characters() | st.sampled_from("\\nxu0\n\x1b\udcff\u202e"), min_size=1))
def test_what_is_shown_can_be_read_back(path: str) -> None:
    assert parse_displayed_path(display_path(path)) == path
