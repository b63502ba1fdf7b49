"""Conformance of events: emitted once per change, in order, after the change is done."""

import hashlib
import logging

import pytest

from weakincentives.filesystem import (
    DirectoryCreated,
    FileDeleted,
    FilesystemEvent,
    FileWritten,
    ObservableFilesystem,
    StateReplaced,
    WriteMode,
)
from weakincentives.filesystem.testing.contract import ConformanceSuite


class EventTests(ConformanceSuite):
    """`subscribe`."""

    def test_the_filesystem_is_observable(self, fs: ObservableFilesystem) -> None:
        assert isinstance(fs, ObservableFilesystem)

    @pytest.mark.parametrize(
        ("before", "mode", "text", "after"),
        [
            (None, "create", "é", "é"),
            ("old text", "overwrite", "new", "new"),
            ("one", "append", "two", "onetwo"),
        ],
        ids=["new", "replaced", "appended"],
    )
    def test_a_write_is_reported_with_before_and_after(
        self, fs: ObservableFilesystem, before: str | None, mode: WriteMode, text: str, after: str
    ) -> None:
        if before is not None:
            fs.write("file", before)
        events = record_events(fs)
        fs.write_bytes("file", text.encode(), mode=mode)
        expected = FileWritten(
            path="file",
            bytes_written=len(text.encode()),
            mode=mode,
            created=before is None,
            before_hash=None if before is None else _hash(before),
            after_hash=_hash(after),
            before_size=None if before is None else len(before),
            after_size=len(after.encode()),
        )
        assert events == [expected]

    def test_parents_are_reported_before_the_file(self, fs: ObservableFilesystem) -> None:
        fs.mkdir("a")
        events = record_events(fs)
        fs.write("a/b/c/file", "")
        assert events[:2] == [DirectoryCreated("a/b"), DirectoryCreated("a/b/c")]
        assert [event_path(event) for event in events[2:]] == ["a/b/c/file"]

    def test_every_directory_made_is_reported(self, fs: ObservableFilesystem) -> None:
        events = record_events(fs)
        fs.mkdir("a/b")
        fs.mkdir("a")
        fs.mkdir(".")
        assert events == [DirectoryCreated("a"), DirectoryCreated("a/b")]

    def test_a_deleted_file_is_reported_with_what_it_was(self, fs: ObservableFilesystem) -> None:
        fs.write("file", "text")
        events = record_events(fs)
        fs.delete("file")
        assert events == [FileDeleted("file", "file", _hash("text"), 4)]

    def test_a_deleted_directory_is_reported_once(self, fs: ObservableFilesystem) -> None:
        fs.write("dir/sub/file", "text")
        events = record_events(fs)
        fs.delete("dir", recursive=True)
        assert events == [FileDeleted("dir", "directory", None, None)]

    def test_what_changes_nothing_is_not_reported(self, fs: ObservableFilesystem) -> None:
        fs.write("dir/file", "text")
        events = record_events(fs)
        fs.read("dir/file")
        fs.list("dir")
        fs.glob("**")
        fs.grep("text")
        for change in (
            lambda: fs.write("dir/file", "", mode="create"),
            lambda: fs.write("dir/file/below", ""),
            lambda: fs.write("new/bell\a", ""),
            lambda: fs.delete("dir"),
            lambda: fs.delete("gone"),
            lambda: fs.mkdir("dir", exist_ok=False),
        ):
            with pytest.raises((OSError, ValueError)):
                change()
        assert events == []

    def test_a_listener_sees_the_change_done(self, fs: ObservableFilesystem) -> None:
        seen: list[str] = []
        fs.subscribe(lambda event: seen.append(fs.read(event_path(event)).content))
        fs.write("file", "one")
        fs.write("file", "two")
        assert seen == ["one", "two"]

    def test_listeners_are_called_in_subscription_order(self, fs: ObservableFilesystem) -> None:
        received: list[int] = []
        fs.subscribe(lambda _: received.append(1))
        fs.subscribe(lambda _: received.append(2))
        fs.write("file", "")
        assert received == [1, 2]

    def test_an_unsubscribed_listener_gets_no_more_events(self, fs: ObservableFilesystem) -> None:
        events: list[FilesystemEvent] = []
        kept = record_events(fs)
        unsubscribe = fs.subscribe(events.append)
        fs.write("one", "")
        unsubscribe()
        unsubscribe()
        fs.write("two", "")
        assert [event_path(event) for event in events] == ["one"]
        assert [event_path(event) for event in kept] == ["one", "two"]

    def test_one_listener_subscribed_twice_is_two(self, fs: ObservableFilesystem) -> None:
        events: list[FilesystemEvent] = []
        unsubscribe = fs.subscribe(events.append)
        fs.subscribe(events.append)
        unsubscribe()
        fs.write("file", "")
        assert len(events) == 1

    def test_a_listener_that_raises_stops_nothing(
        self, fs: ObservableFilesystem, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail(event: FilesystemEvent) -> None:
            raise RuntimeError(f"cannot take {event}")

        fs.subscribe(fail)
        events = record_events(fs)
        with caplog.at_level(logging.ERROR):
            fs.write("dir/file", "text")
        assert fs.read("dir/file").content == "text"
        assert [event_path(event) for event in events] == ["dir", "dir/file"]
        assert "cannot take" in caplog.text

    def test_the_events_of_one_thread_are_enough_to_follow_it(
        self, fs: ObservableFilesystem
    ) -> None:
        events = record_events(fs)
        fs.write("a/file", "1")
        fs.write("a/file", "2", mode="append")
        fs.delete("a", recursive=True)
        assert list(map(str, events)) == [
            "a/ created",
            "a/file created",
            "a/file written",
            "a deleted",
        ]


def event_path(event: FilesystemEvent) -> str:
    """Return the path of an event that has exactly one."""
    assert not isinstance(event, StateReplaced), event
    return event.path


def record_events(fs: ObservableFilesystem) -> list[FilesystemEvent]:
    """Return a list to which every later event is appended."""
    events: list[FilesystemEvent] = []
    fs.subscribe(events.append)
    return events


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
