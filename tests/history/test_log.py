"""The record file: torn ends, damage, two writers, kills and compaction."""

import os
import random
import signal
import struct
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sizes import size
from weakincentives.history.log import MAX_PAYLOAD, LogError, LogRecord, RecordLog
from weakincentives.posix import fault_hook

SIGNATURE = b"wink-test 1\n"
STEP, NOTE = b"S", b"N"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture(autouse=True)
def no_leftovers(tmp_path: Path) -> Iterator[None]:
    """Nothing lies beside the file at the end."""
    yield
    assert {each.name for each in tmp_path.iterdir()} <= {"log", "other"}


def write(path: Path, *payloads: bytes, kind: bytes = STEP) -> list[int]:
    with RecordLog(path, SIGNATURE) as log:
        return [log.append(kind, lambda _, each=each: each) for each in payloads]


def read(path: Path) -> tuple[list[tuple[int, bytes]], str | None]:
    with RecordLog(path, SIGNATURE, read_only=True) as log:
        return [(each.number, each.payload) for each in log.read_new()], log.problem


def offsets(path: Path) -> list[int]:
    with RecordLog(path, SIGNATURE, read_only=True) as log:
        return [each.offset for each in log.read_new()]


def flip(path: Path, offset: int, bit: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= bit
    path.write_bytes(data)


def test_records_are_read_in_order_and_numbered_by_kind(path: Path) -> None:
    assert write(path, b"a", b"b") == [1, 2]
    assert write(path, b"n", kind=NOTE) == [1]
    assert write(path, b"", b"\0" * 100_000) == [3, 4]
    with RecordLog(path, SIGNATURE, read_only=True) as log:
        found = [(each.kind, each.number, each.payload) for each in log.read_new()]
        assert (log.last(STEP), log.last(NOTE), log.problem) == (4, 1, None)
    assert found == [
        (STEP, 1, b"a"),
        (STEP, 2, b"b"),
        (NOTE, 1, b"n"),
        (STEP, 3, b""),
        (STEP, 4, b"\0" * 100_000),
    ]


def test_the_payload_is_made_with_the_number_and_after_reading_the_others(path: Path) -> None:
    with RecordLog(path, SIGNATURE) as first, RecordLog(path, SIGNATURE) as second:
        first.append(STEP, lambda number: b"first %d" % number)
        seen: list[bytes] = []

        def make(number: int) -> bytes:
            seen.extend(each.payload for each in second.read_new())
            return b"second %d" % number

        assert second.append(STEP, make) == 2
        assert seen == [b"first 1"]
        assert [each.payload for each in first.read_new()] == [b"second 2"]
        assert list(second.read_new()) == []
    assert read(path) == ([(1, b"first 1"), (2, b"second 2")], None)


def test_a_torn_end_of_any_length_is_cut(path: Path) -> None:
    write(path, b"one", b"two")
    whole = path.read_bytes()
    last = offsets(path)[1]
    for length in range(last, len(whole)):
        path.write_bytes(whole[:length])
        records, problem = read(path)
        assert records == [(1, b"one")]
        assert (problem is None) == (length == last)
        assert problem is None or f"the last {length - last} bytes" in problem
        assert write(path, b"again") == [2]
        assert read(path) == ([(1, b"one"), (2, b"again")], None)


def test_a_flipped_bit_costs_one_record_and_is_reported(path: Path) -> None:
    payloads = [os.urandom(40), b"x" * 500, os.urandom(3), b"end"]
    write(path, *payloads)
    whole = path.read_bytes()
    starts = [*offsets(path), len(whole)]
    good = list(enumerate(payloads, 1))
    for offset in range(starts[0], len(whole)):
        path.write_bytes(whole)
        flip(path, offset, 1 << offset % 8)
        hit = sum(start <= offset for start in starts)
        records, problem = read(path)
        assert records == good[: hit - 1] + good[hit:], offset
        assert problem is not None
        write(path, b"more")
        records, _ = read(path)
        assert records[-1][1] == b"more"
        assert records[:-1] == good[: hit - 1] + good[hit:], "good records were cut"


def test_damage_names_the_place_and_what_is_lost(path: Path) -> None:
    write(path, b"one", b"two", b"three")
    start, end = offsets(path)[1:]
    flip(path, end - 1)
    problem = read(path)[1] or ""
    assert f"{end - start} bytes at byte {start} are damaged, record 2 lost" in problem
    flip(path, start)
    problem = read(path)[1] or ""
    assert f"at byte {start} are damaged, unknown records lost" in problem


def test_bytes_in_a_payload_are_never_taken_for_a_record(path: Path, tmp_path: Path) -> None:
    """Also where a header is lost, so that its payload is searched for the next record."""
    other = tmp_path / "other"
    write(path, b"first")
    token = path.read_bytes()[: len(SIGNATURE) + 16]
    other.write_bytes(token)
    write(other, b"", b"", os.urandom(5_000))
    record = other.read_bytes()[offsets(other)[2] :]  # made for this file, at another place
    write(path, record + os.urandom(5_000), b"last")
    assert record in path.read_bytes(), "it was compressed"
    flip(path, offsets(path)[1])
    assert read(path)[0] == [(1, b"first"), (3, b"last")]


def test_a_number_that_was_lost_is_not_given_again(path: Path) -> None:
    write(path, b"one", b"two")
    flip(path, path.stat().st_size - 1)
    assert write(path, b"three") == [3]
    assert [number for number, _ in read(path)[0]] == [1, 3]


def test_two_processes_give_every_number_once(path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from weakincentives.history.log import RecordLog\n"
        "log = RecordLog(Path(sys.argv[1]), b'wink-test 1\\n')\n"
        "name = sys.argv[2].encode()\n"
        "for each in range(300): log.append(b'S', lambda number: b'%d %s' % (number, name))\n"
        "assert sum(1 for each in log.read_new()) <= 300"
    )
    command = [sys.executable, "-c", code, str(path)]
    running = [subprocess.Popen([*command, name]) for name in "ab"]
    assert [each.wait() for each in running] == [0, 0]
    records, problem = read(path)
    assert problem is None
    assert [number for number, _ in records] == list(range(1, 601))
    assert all(payload.startswith(b"%d " % number) for number, payload in records)
    assert {payload[-1:] for _, payload in records} == {b"a", b"b"}


def test_writers_that_are_killed_anywhere_lose_nothing_they_knew(path: Path) -> None:
    choice = random.Random(3)
    records: list[tuple[int, bytes]] = []
    for _ in range(size(12, 40)):
        known = kill_a_writer(path, choice.randrange(1, 30))
        records, _ = read(path)
        assert [number for number, _ in records] == list(range(1, len(records) + 1))
        assert len(records) >= known
    assert write(path, b"end") == [len(records) + 1]
    assert read(path)[1] is None


def kill_a_writer(path: Path, count: int) -> int:
    """Kill a process after it has appended so many records; return the last it knew of."""
    known = 0
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        log = RecordLog(path, SIGNATURE)
        while True:
            number = log.append(STEP, lambda number: struct.pack("Q", number) * (number % 500))
            os.write(writing, struct.pack("Q", number))
    os.close(writing)
    with os.fdopen(reading, "rb") as told:
        for _ in range(count):
            known = struct.unpack("Q", told.read(8))[0]
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        while data := told.read(8):
            known = struct.unpack("Q", data)[0]
    return known


@pytest.mark.parametrize(
    "point", ["record.locked", "record.writing", "record.written", "record.synced"]
)
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_an_append_that_fails_changes_nothing_and_keeps_no_lock(
    path: Path, point: str, error: BaseException
) -> None:
    write(path, b"one")
    before = path.read_bytes()

    def fail(reached: str) -> None:
        if reached == point:
            raise error

    with RecordLog(path, SIGNATURE, durable=True) as log:
        with pytest.raises(type(error)), fault_hook(fail):
            log.append(STEP, lambda _: b"two")
        assert path.read_bytes() == before
        assert write(path, b"from another") == [2]
        assert log.append(STEP, lambda _: b"three") == 3


def test_a_creator_that_was_killed_leaves_a_file_that_can_be_used(path: Path) -> None:
    write(path)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert write(path, b"one") == [1]
        assert read(path) == ([(1, b"one")], None)


def test_compaction_keeps_numbers_and_is_followed_by_other_processes(path: Path) -> None:
    write(path, *(b"%d" % number for number in range(1, 11)))
    with RecordLog(path, SIGNATURE) as other, RecordLog(path, SIGNATURE) as log:
        assert len(list(other.read_new())) == 10
        write(path, b"11")
        log.compact(lambda record: record.number > 8)
        assert [each.number for each in log.read_new()] == list(range(1, 12))  # unread until now
        assert log.append(STEP, lambda _: b"12") == 12
        assert [each.number for each in other.read_new()] == [11, 12]
        assert other.append(STEP, lambda _: b"13") == 13
        log.compact(lambda _: False)
        assert [each.number for each in log.read_new()] == [13]
    assert read(path) == ([(13, b"13")], None)


@pytest.mark.parametrize("point", ["record.compacted", "record.replaced"])
def test_a_compaction_that_is_killed_leaves_the_old_file_or_the_new_one(
    path: Path, point: str
) -> None:
    write(path, b"one", b"two")
    child = os.fork()
    if child == 0:
        with fault_hook(lambda reached: os._exit(0) if reached == point else None):
            RecordLog(path, SIGNATURE).compact(lambda _: False)
    os.waitpid(child, 0)
    kept = [(1, b"one"), (2, b"two")] if point == "record.compacted" else [(2, b"two")]
    assert read(path) == (kept, None)
    assert write(path, b"three") == [3]
    for each in path.parent.glob(".wink*"):
        each.unlink()


def test_a_record_from_a_stranger_inflates_to_a_bounded_size(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bomb = zlib.compress(bytes(5 * MAX_PAYLOAD), 1)
    with monkeypatch.context() as patch:
        patch.setattr("weakincentives.history.log._compress", lambda *_: bomb)
        write(path, b"")
    write(path, b"good")
    tracemalloc.start()
    records, problem = read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * MAX_PAYLOAD
    assert records == [(2, b"good")]
    assert "inflates to more than 64 MiB" in (problem or "")


def test_a_record_that_is_too_large_is_not_written(path: Path) -> None:
    with pytest.raises(LogError, match="is larger than"):
        write(path, bytes(MAX_PAYLOAD + 1))
    assert write(path, bytes(MAX_PAYLOAD)) == [1]
    assert read(path)[0] == [(1, bytes(MAX_PAYLOAD))]


def test_another_file_is_refused_in_a_sentence(path: Path) -> None:
    path.write_bytes(b"wink-test 2\n" + bytes(100))
    with pytest.raises(LogError, match="has version '2', this program reads version '1'"):
        RecordLog(path, SIGNATURE)
    path.write_bytes(b"something else")
    with pytest.raises(LogError, match="Not a wink-test file"):
        RecordLog(path, SIGNATURE)
    assert path.read_bytes() == b"something else"
    path.unlink()
    path.symlink_to("/dev/null")
    with pytest.raises(OSError, match="symbolic"):
        RecordLog(path, SIGNATURE)


def test_a_record_in_flight_is_not_reported(path: Path) -> None:
    seen: list[tuple[list[LogRecord], str | None]] = []

    def look(point: str) -> None:
        if point == "record.written":
            os.truncate(path, path.stat().st_size - 1)  # as if the rest was not written yet
            with RecordLog(path, SIGNATURE, read_only=True) as log:
                seen.append((list(log.read_new()), log.problem))

    with fault_hook(look):
        write(path, b"one")
    assert seen == [([], None)]
