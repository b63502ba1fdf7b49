"""Parameters, result and limits of `evaluate_python`, the same for every engine."""

from dataclasses import dataclass, field
from typing import Literal

from weakincentives.filesystem import MAX_WRITE_LENGTH, WriteMode


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
