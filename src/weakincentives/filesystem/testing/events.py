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
)
from weakincentives.filesystem.testing.contract import ConformanceSuite


class EventTests(ConformanceSuite):
    """`subscribe`."""

    def test_the_filesystem_is_observable(self, fs: ObservableFilesystem) -> None:
        assert isinstance(fs, ObservableFilesystem)

    def test_a_new_file_is_reported_with_hash_and_size(self, fs: ObservableFilesystem) -> None:
        events = record_events(fs)
        fs.write("file", "é", mode="create")
        assert events == [
            FileWritten("file", 2, "create", created=True, after_hash=_hash("é"), after_size=2)
        ]

    def test_a_replaced_file_is_reported_with_before_and_after(
        self, fs: ObservableFilesystem
    ) -> None:
        fs.write("file", "old text")
        events = record_events(fs)
        fs.write_bytes("file", b"new")
        expected = FileWritten(
            path="file",
            bytes_written=3,
            mode="overwrite",
            created=False,
            before_hash=_hash("old text"),
            after_hash=_hash("new"),
            before_size=8,
            after_size=3,
        )
        assert events == [expected]

    def test_an_append_is_reported_with_the_whole_file_after_it(
        self, fs: ObservableFilesystem
    ) -> None:
        fs.write("file", "one")
        events = record_events(fs)
        fs.write("file", "two", mode="append")
        assert events == [
            FileWritten(
                "file",
                3,
                "append",
                created=False,
                before_hash=_hash("one"),
                after_hash=_hash("onetwo"),
                before_size=3,
                after_size=6,
            )
        ]

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
