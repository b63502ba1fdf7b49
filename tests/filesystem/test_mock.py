"""The mock filesystem: records calls, plays back responses, and otherwise works normally."""

import pytest

from weakincentives.filesystem import (
    Filesystem,
    ObservableFilesystem,
    ReadOnlyError,
    ReadResult,
    Results,
)
from weakincentives.filesystem.testing import Call, MockFilesystem

PAGE = ReadResult("canned", "a.txt", 1, 0, 2_000, False)


def test_the_mock_is_a_filesystem():
    assert isinstance(MockFilesystem(), Filesystem)
    assert isinstance(MockFilesystem(), ObservableFilesystem)


def test_every_call_is_recorded_with_its_arguments_and_defaults():
    fs = MockFilesystem()
    fs.write("a.txt", "text", mode="create")
    fs.list()
    fs.grep("t", path="a.txt")
    assert fs.calls == (
        Call("write", "a.txt", {"content": "text", "mode": "create", "create_parents": True}),
        Call("list", "."),
        Call(
            "grep",
            "t",
            {"path": "a.txt", "glob": None, "max_matches": None, "use_ignore_files": False},
        ),
    )


def test_calls_can_be_filtered_by_method():
    fs = MockFilesystem()
    fs.exists("a")
    fs.mkdir("b")
    fs.exists("c")
    assert [call.subject for call in fs.calls_of("exists")] == ["a", "c"]
    assert fs.calls_of("move") == ()


def test_a_failed_call_is_recorded_too():
    fs = MockFilesystem()
    with pytest.raises(FileNotFoundError):
        fs.read("gone")
    assert [str(call) for call in fs.calls] == [
        "read('gone', offset=0, limit=None, encoding='utf-8')"
    ]


def test_a_response_is_returned():
    fs = MockFilesystem()
    fs.respond("read", PAGE)
    assert fs.read("anything") is PAGE
    assert fs.read("anything else") is PAGE


def test_an_exception_is_raised():
    fs = MockFilesystem()
    fs.respond("write", OSError(28, "No space left on device"))
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            fs.write("a.txt", "text")
    assert not fs.backend.exists("a.txt")


def test_responses_are_played_in_turn_and_the_last_one_repeats():
    fs = MockFilesystem()
    fs.respond("exists", True, False)
    assert [fs.exists("a") for _ in range(3)] == [True, False, False]


def test_a_response_to_one_path_leaves_the_others_alone():
    fs = MockFilesystem()
    fs.backend.write("b.txt", "real")
    fs.respond("read", PAGE, to="a.txt")
    assert fs.read("a.txt") is PAGE
    assert fs.read("b.txt").content == "real"


def test_a_response_to_one_path_goes_before_one_to_all():
    fs = MockFilesystem()
    fs.respond("exists", True)
    fs.respond("exists", False, to="a")
    assert (fs.exists("a"), fs.exists("b")) == (False, True)


def test_no_responses_mean_the_backend_again():
    fs = MockFilesystem()
    fs.respond("glob", Results())
    fs.respond("glob")
    fs.write("a.txt", "")
    assert [match.path for match in fs.glob("*")] == ["a.txt"]


def test_the_backend_can_be_filled_without_a_record():
    fs = MockFilesystem()
    fs.backend.write("a.txt", "text")
    assert fs.calls == ()
    assert fs.read("a.txt").content == "text"


def test_a_method_that_does_not_exist_is_refused():
    fs = MockFilesystem()
    with pytest.raises(ValueError, match="'raed'"):
        fs.respond("raed", PAGE)
    with pytest.raises(ValueError, match="'raed'"):
        fs.calls_of("raed")


def test_it_can_be_read_only_and_anywhere():
    fs = MockFilesystem(read_only=True, root="/workspace")
    assert (fs.read_only, fs.root) == (True, "/workspace")
    with pytest.raises(ReadOnlyError):
        fs.write("a.txt", "")
