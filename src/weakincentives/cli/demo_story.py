"""The story of `wink demo`: a bug is found and fixed in two workspaces, and attacks fail.

Every step calls the library and tells what came back. Each call is made on the memory
workspace and on the host workspace, and the story ends if their answers differ.
"""

import difflib
import hashlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar

from weakincentives.filesystem import (
    MAX_WRITE_LENGTH,
    BaseFilesystem,
    FilesystemEvent,
    FileWritten,
    HostFilesystem,
    HostMount,
    InMemoryFilesystem,
)

PROJECT = Path(__file__).parent / "demo_project"

Look: TypeAlias = Literal["plain", "quiet", "call", "good", "bad", "added", "removed"]
T = TypeVar("T")

_FILE = "bills/split.py"
_SUSPECT = r"total\s*//"
_BUG = "    return [total // people] * people\n"
_FIX = """\
    share, left = divmod(total, people)
    return [share + 1] * left + [share] * (people - left)
"""
_NOTE = "# Changes\n\n- Cents that do not divide are handed out, one each.\n"
_HOSTILE = r"^(a+)+$"
_TRAP = "trap.txt"
_TRAP_LENGTH = 40_000


class StoryError(RuntimeError):
    """The workspace did not do what the story says it does."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of output in pieces, each with its look; `lead` is a column to the left of it."""

    pieces: tuple[tuple[str, Look], ...]
    lead: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that was done: how it was called, what to show, and the facts as data."""

    name: str
    title: str
    call: str
    lines: tuple[Line, ...]
    facts: Mapping[str, object] = field(default_factory=dict[str, object])


class Story:
    """The steps, played on a workspace in memory and one in `directory`."""

    def __init__(self, directory: Path) -> None:
        """Open both workspaces; `directory` exists and is empty."""
        self._directory = directory
        self._memory = InMemoryFilesystem()
        self._host = HostFilesystem(directory)
        self._journals: tuple[list[FilesystemEvent], list[FilesystemEvent]] = ([], [])

    def steps(self) -> Iterator[Step]:
        """Play the story, one step at a time.

        Raises:
            StoryError: Something came out differently from what is told.
        """
        with self._memory, self._host:
            yield self._copy_in()
            yield self._run_test("test", "Run its test, on the disk", "FAILED")
            yield self._search()
            yield self._read()
            yield self._edit()
            yield self._run_test("test again", "Run the test again", "OK")
            yield self._record()
            yield self._attack()
            yield self._compare()

    def _copy_in(self) -> Step:
        mount = HostMount(".", exclude_glob=("*.pyc",))
        report = self._both(lambda fs: fs.hydrate_from_host(mount, allowed_roots=[PROJECT]))
        for fs, journal in zip((self._memory, self._host), self._journals, strict=True):
            fs.subscribe(journal.append)
        entries = self._both(lambda fs: fs.list())
        names = [str(entry) for entry in entries]
        size = f"{report.file_count} files, {report.total_bytes:,} bytes, into memory and onto disk"
        return Step(
            "mount",
            "Copy a project in",
            'fs.hydrate_from_host(HostMount("."), allowed_roots=[project])',
            (Line((("   ".join(names), "plain"), (f"   ({size})", "quiet"))),),
            {"files": report.file_count, "bytes": report.total_bytes, "listing": names},
        )

    def _run_test(self, name: str, title: str, wanted: str) -> Step:
        command = [sys.executable, "-I", "-B", "-m", "unittest"]
        done = subprocess.run(
            command, cwd=self._directory, capture_output=True, text=True, check=False, timeout=60
        )
        told = done.stderr.strip().splitlines()
        if not told or not told[-1].startswith(wanted):
            raise StoryError(f"The project's test did not end with {wanted!r}: {done.stderr!r}")
        reasons = [line for line in told if line.startswith(("FAIL:", "AssertionError"))]
        look: Look = "good" if done.returncode == 0 else "bad"
        lines = [_line(line.partition(" (")[0]) for line in reasons]
        return Step(
            name,
            title,
            "python -m unittest",
            (*lines, _line(told[-1], look)),
            {"exit_code": done.returncode, "output": [*reasons, told[-1]]},
        )

    def _search(self) -> Step:
        found = self._both(lambda fs: fs.grep(_SUSPECT, glob="*.py"))
        lines = [
            Line(
                (
                    (f"{match.path}:{match.line_number}: ", "quiet"),
                    (match.line_content[: match.match_start].lstrip(), "plain"),
                    (match.line_content[match.match_start : match.match_end], "bad"),
                    (match.line_content[match.match_end :], "plain"),
                )
            )
            for match in found
        ]
        return Step(
            "grep",
            "Find what loses a cent",
            f'fs.grep(r"{_SUSPECT}", glob="*.py")',
            tuple(lines),
            {"matches": [str(match) for match in found]},
        )

    def _read(self) -> Step:
        page = self._both(lambda fs: fs.read(_FILE, offset=5, limit=3))
        numbered = enumerate(page.content.splitlines(), start=page.offset + 1)
        lines = [Line(((f"{number:>3}  ", "quiet"), (text, "plain"))) for number, text in numbered]
        return Step(
            "read",
            "Read a page, not the file",
            f'fs.read("{_FILE}", offset=5, limit=3)',
            tuple(lines),
            {"path": page.path, "offset": page.offset, "total_lines": page.total_lines},
        )

    def _edit(self) -> Step:
        before = self._both(lambda fs: fs.read(_FILE).content)
        after = before.replace(_BUG, _FIX)
        self._both(lambda fs: fs.write(_FILE, after))
        self._both(lambda fs: fs.write("docs/changes.md", _NOTE, mode="create"))
        diff = list(
            difflib.unified_diff(
                before.splitlines(), after.splitlines(), _FILE, _FILE, "", "", 1, ""
            )
        )
        return Step(
            "write",
            "Change it in one step",
            f'fs.write("{_FILE}", text)',
            (
                *(_line(line, _diff_look(line)) for line in diff[2:]),
                _line('and a note with fs.write("docs/changes.md", note, mode="create")', "quiet"),
            ),
            {"path": _FILE, "diff": diff},
        )

    def _record(self) -> Step:
        told, other = self._journals
        if told != other:
            raise StoryError(f"Memory and host told different events: {told!r}, {other!r}")
        return Step(
            "events",
            "See what was recorded",
            "fs.subscribe(journal.append)",
            tuple(_line(_event_text(event)) for event in told),
            {"events": [_event_text(event) for event in told]},
        )

    def _attack(self) -> Step:
        (self._directory / "notes").symlink_to("/etc/passwd")
        refused = [
            ('read("../../etc/passwd")', self._refusal(lambda fs: fs.read("../../etc/passwd"))),
            ('read("notes")  # a link', _error_of(lambda: self._host.read("notes"))),
            ('write("big", 48_001 * "x")', self._refusal(_write_too_much)),
            (r'grep(r"(a)\1")', self._refusal(lambda fs: fs.grep(r"(a)\1"))),
        ]
        self._host.delete("notes")
        seconds, answered = self._hostile_search()
        lines = [_refused(call, error) for call, error in refused]
        facts = [
            {"call": call, "error": type(e).__name__, "message": str(e)} for call, e in refused
        ]
        return Step(
            "attacks",
            "Try what a model may try",
            "# each is refused, or bounded",
            (*lines, answered),
            {"refused": facts, "hostile_pattern_seconds": round(seconds, 4)},
        )

    def _hostile_search(self) -> tuple[float, Line]:
        """Search for what would keep a backtracking engine busy for ever."""
        self._both(lambda fs: fs.write(_TRAP, "a" * _TRAP_LENGTH + "!\n"))
        started = time.perf_counter()
        found = self._both(lambda fs: fs.grep(_HOSTILE, path=_TRAP))
        seconds = time.perf_counter() - started
        self._both(lambda fs: fs.delete(_TRAP))
        told = f"answered in {seconds * 1000:.1f} ms, backtracking takes for ever"
        return seconds, _verdict(f'grep(r"{_HOSTILE}")', told, f"{len(found)} matches", "good")

    def _compare(self) -> Step:
        digest = self._both(_tree_hash)
        lines = [
            Line(((f"{name:<8}", "quiet"), (digest, "plain"), ("  same", "good")))
            for name in ("memory", "host")
        ]
        return Step(
            "tree",
            "Compare the two workspaces",
            "SHA-256 over every path and content",
            tuple(lines),
            {"memory": digest, "host": digest},
        )

    def _both(self, call: Callable[[BaseFilesystem], T]) -> T:
        """Return what both workspaces answer."""
        answer, other = call(self._memory), call(self._host)
        if answer != other:
            raise StoryError(f"Memory and host gave different answers: {answer!r}, {other!r}")
        return answer

    def _refusal(self, call: Callable[[BaseFilesystem], object]) -> Exception:
        """Return the error with which both workspaces refuse."""
        answer, other = (_error_of(lambda fs=fs: call(fs)) for fs in (self._memory, self._host))
        if repr(answer) != repr(other):
            raise StoryError(f"Memory and host refused differently: {answer!r}, {other!r}")
        return answer


def _error_of(call: Callable[[], object]) -> Exception:
    try:
        answer = call()
    except (OSError, ValueError) as error:
        return error
    raise StoryError(f"An attack was not refused: {answer!r}")


def _write_too_much(fs: BaseFilesystem) -> object:
    return fs.write("big", (MAX_WRITE_LENGTH + 1) * "x")


def _tree_hash(fs: BaseFilesystem) -> str:
    digest = hashlib.sha256()
    for match in fs.glob("**"):
        digest.update(f"{match.path}\0{fs.content_hash(match.path)}\n".encode())
    return digest.hexdigest()


def _refused(call: str, error: Exception) -> Line:
    # the number that the operating system gives an error tells a reader nothing
    sentence = str(error).partition("] ")[2] if isinstance(error, OSError) and error.errno else ""
    return _verdict(call, sentence or str(error), type(error).__name__, "bad")


def _verdict(call: str, text: str, word: str, look: Look) -> Line:
    return Line(((word, look), (f": {text}", "plain")), lead=f"{call:<28}")


def _event_text(event: FilesystemEvent) -> str:
    if not isinstance(event, FileWritten):
        return str(event)
    before = (
        f"{event.before_size} bytes, {_short(event.before_hash)} -> " if event.before_hash else ""
    )
    return f"{event}: {before}{event.after_size} bytes, {_short(event.after_hash)}"


def _short(digest: str | None) -> str:
    return digest[:8] if digest else "-"


def _diff_look(line: str) -> Look:
    if line.startswith(("---", "+++", "@@")):
        return "quiet"
    return "added" if line.startswith("+") else "removed" if line.startswith("-") else "plain"


def _line(text: str, look: Look = "plain") -> Line:
    return Line(((text, look),))
