"""The contract of `evaluate_python`: parameters, result, limits, and the interface of engines.

The parameters, the result and the limits are the same for every engine.

An engine gets an `EngineRequest` and a `FileAccess`, and returns an `EngineOutcome`:

    outcome = engine.evaluate(request, files)

- The code sees the variables of `request.globals`, and the functions `read_text(path)` and
  `write_text(path, content, mode="overwrite")`. `mode` is "create", "overwrite" or "append".
- Every file that the code reads or writes goes through `files`, in whatever way the language
  offers it (`open`, `pathlib`, `read_text`). `files` checks paths and limits, and queues writes:
  the evaluator applies them, all or none, only if the outcome has no error. An exception that
  `files` raises (an `OSError` or a `ValueError`) is raised in the code, which may catch it.
- `evaluate` returns an outcome for everything that the code can do, timeouts and crashes
  included. It raises `EngineUnavailableError` only if the engine itself does not work.
- The engine bounds and renders everything in the process where the code ran: at most
  `limits.max_output_length` characters of stdout, of stderr and of the value (see
  `clip`), and variables within `max_globals`, `max_global_length` and
  `max_globals_length`. Variables whose name starts with an underscore are not returned, nor
  are modules, functions and other values that JSON cannot represent.
- Nothing remains of a call: the next one cannot see its variables, and no process of it is
  left, except those that wait for the next call.
- Engines are thread-safe. `close` stops their processes, and is idempotent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from weakincentives.errors import WinkError
from weakincentives.filesystem import MAX_WRITE_LENGTH, FileEntry, FileStat, WriteMode

JsonValue: TypeAlias = (
    "bool | int | float | str | Sequence[JsonValue] | Mapping[str, JsonValue] | None"
)


@dataclass(frozen=True, slots=True)
class EvalFileRead:
    """A workspace file that is loaded before the code runs.

    Args:
        path: The file; it must be UTF-8 text.
        name: The variable that gets its text. Without a name, the code can use read_text(path).
    """

    path: str
    name: str | None = None


@dataclass(frozen=True, slots=True)
class EvalFileWrite:
    """A workspace file that is written after the code has succeeded.

    Args:
        path: The file; missing parent directories are created.
        content: The text. Each {name} is replaced by the value of that variable; write {{name}}
            for a literal {name}.
        mode: "create" fails if the file exists, "overwrite" replaces it, "append" adds to its
            end.
    """

    path: str
    content: str
    mode: WriteMode = "create"


@dataclass(frozen=True, slots=True)
class EvalParams:
    """Run Python code that computes over the files of the workspace.

    Args:
        code: The Python code. The value of its last expression is returned.
        globals: Variables for the code: each value is JSON text, for example "[1, 2]".
        reads: Files to load into variables.
        writes: Files to write after the code has succeeded, from its variables.
    """

    code: str
    globals: dict[str, str] = field(default_factory=dict[str, str])
    reads: tuple[EvalFileRead, ...] = ()
    writes: tuple[EvalFileWrite, ...] = ()


@dataclass(frozen=True, slots=True)
class EvalError:
    """Why the code failed.

    Args:
        type: The name of the exception, such as "ZeroDivisionError".
        message: Its message.
        line: The line of the code, counted from 1; None if it is not known.
        source: That line.
        during: "code" while it ran, "writes" if it succeeded and its files could not be written.
    """

    type: str
    message: str
    line: int | None = None
    source: str | None = None
    during: Literal["code", "writes"] = "code"


@dataclass(frozen=True, slots=True)
class EvalResult:
    """The result of `evaluate_python`.

    Args:
        value_repr: The `repr` of the last expression's value; None if there is none, or it is
            None.
        stdout: What the code printed.
        stderr: What it printed to standard error.
        globals: Its variables that JSON can represent, as JSON text.
        reads: The files that were read: those declared, then those that the code read.
        writes: The files that were written, with the text as written; none if the code failed.
        error: Why the code failed; None if it succeeded.
        timed_out: Whether it was stopped by the time limit.
        duration_ms: How long it took, in milliseconds.
        engine: The name of the engine that ran it.
    """

    value_repr: str | None
    stdout: str
    stderr: str
    globals: dict[str, str]
    reads: tuple[EvalFileRead, ...]
    writes: tuple[EvalFileWrite, ...]
    error: EvalError | None = None
    timed_out: bool = False
    duration_ms: int = 0
    engine: str = ""


@dataclass(frozen=True, slots=True)
class EvalLimits:
    """Limits of one evaluation; every field can be set."""

    max_code_length: int = 2_000
    """Characters in the code."""
    max_output_length: int = 4_096
    """Characters kept of each of stdout, stderr and the value's `repr`."""
    max_seconds: float = 5.0
    """Seconds for one evaluation, file access included."""
    max_memory_bytes: int = 256 * 1024 * 1024
    """Bytes of memory that the code can use."""
    max_write_length: int = MAX_WRITE_LENGTH
    """Characters in one written file; the limits of the filesystem apply too."""
    max_writes: int = 32
    """Files that one evaluation can write."""
    max_reads: int = 32
    """Files that one evaluation can declare as reads."""
    max_read_bytes: int = 4 * 1024 * 1024
    """Bytes of one file that the code reads."""
    max_total_read_bytes: int = 32 * 1024 * 1024
    """Bytes of all files that one evaluation reads."""
    max_file_calls: int = 10_000
    """Calls of file functions by the code."""
    max_globals: int = 64
    """Variables passed in; also those returned."""
    max_global_length: int = MAX_WRITE_LENGTH
    """Characters of JSON in one variable that is passed in, or returned."""
    max_globals_length: int = 256_000
    """Characters of JSON in all variables that are passed in; also in all that are returned."""
    max_global_depth: int = 64
    """Nesting of lists and objects in a variable that is passed in."""


DEFAULT_EVAL_LIMITS = EvalLimits()


class EngineUnavailableError(WinkError, RuntimeError):
    """An engine does not work here; the message says what to do."""


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """The code of one evaluation.

    Args:
        code: The code; it is within the limits.
        globals: Its variables, declared reads included.
        limits: The limits of the evaluation.
        seconds: How long it may take: `limits.max_seconds`, or less.
        root: The directory of the workspace; code may use absolute paths below it.
    """

    code: str
    globals: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    limits: EvalLimits = DEFAULT_EVAL_LIMITS
    seconds: float = DEFAULT_EVAL_LIMITS.max_seconds
    root: str = "/"


@dataclass(frozen=True, slots=True)
class EngineOutcome:
    """What became of an evaluation.

    Args:
        value_repr: The `repr` of the last expression's value, bounded; None if the code does not
            end in an expression, or its value is None.
        stdout: What the code printed, bounded.
        stderr: The same for standard error.
        globals: The variables at the end as JSON text, bounded; empty if the code failed.
        error: Why the code failed; None if it succeeded.
        timed_out: Whether the time limit stopped it; then `error` is a `TimeoutError`.
        duration_ms: How long it took, in milliseconds.
    """

    value_repr: str | None = None
    stdout: str = ""
    stderr: str = ""
    globals: Mapping[str, str] = field(default_factory=dict[str, str])
    error: EvalError | None = None
    timed_out: bool = False
    duration_ms: int = 0


class FileAccess(Protocol):
    """The workspace as the code of one evaluation sees it.

    The code's own queued writes are visible to it. Paths are as the code wrote them: relative to
    the workspace root, or absolute below it. All methods raise `OSError` or `ValueError` with
    a message for the model.
    """

    def read_text(self, path: str) -> str:
        """Return the text of a file."""
        ...

    def read_bytes(self, path: str) -> bytes:
        """Return the bytes of a file."""
        ...

    def write_text(self, path: str, content: str, mode: WriteMode = "overwrite") -> None:
        """Queue a write."""
        ...

    def remove(self, path: str) -> None:
        """Take back the write of a file that was not there before."""
        ...

    def make_directory(self, path: str, *, parents: bool = False, exist_ok: bool = False) -> None:
        """Queue the creation of a directory."""
        ...

    def exists(self, path: str) -> bool:
        """Return whether the path exists."""
        ...

    def stat(self, path: str) -> FileStat:
        """Return the metadata of an entry."""
        ...

    def list(self, path: str = ".") -> Sequence[FileEntry]:
        """Return the entries of a directory, sorted by name."""
        ...


@dataclass(frozen=True, slots=True)
class EngineLanguage:
    """What the code can use in an engine, for descriptions and error messages.

    Args:
        summary: One sentence about the language.
        modules: The modules that can be imported, all or in part.
        functions: Functions that are there without an import, beside Python's own builtins.
        missing: What models write and this engine cannot do, in a few words each.
    """

    summary: str
    modules: tuple[str, ...] = ()
    functions: tuple[str, ...] = ("read_text", "write_text")
    missing: tuple[str, ...] = ()


@runtime_checkable
class Engine(Protocol):
    """Runs the code of `evaluate_python` in a process that can be killed."""

    @property
    def name(self) -> str:
        """The name of the engine, such as "monty"."""
        ...

    @property
    def language(self) -> EngineLanguage:
        """What the code can use."""
        ...

    @property
    def bypasses_filesystem(self) -> bool:
        """Whether the code can change files other than through `FileAccess`."""
        ...

    def evaluate(self, request: EngineRequest, files: FileAccess) -> EngineOutcome:
        """Run the code.

        Raises:
            EngineUnavailableError: The engine does not work here.
        """
        ...

    def close(self) -> None:
        """Stop the processes of the engine."""
        ...


def clip(text: str, limit: int, *, dropped: int = 0) -> str:
    """Return at most `limit` characters of a text, with a note of how many are missing.

    Args:
        text: The text, or its beginning.
        limit: The number of characters, note included.
        dropped: Characters that followed `text` and were not kept.
    """
    if len(text) <= limit and not dropped:
        return text
    note = f"\n[{len(text) + dropped} characters in total, only the first are shown]"
    return (text[: max(limit - len(note), 0)] + note)[:limit]
