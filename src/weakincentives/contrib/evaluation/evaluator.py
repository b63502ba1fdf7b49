"""`evaluate_python`: check the parameters, run the code in an engine, apply its writes.

Writes are applied after the code has succeeded, all or none. A failed evaluation is a failed
tool result: nothing is written, and the text says at which line it failed, what was printed and
what to do next.
"""

import json
import keyword
import re
from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from weakincentives.contrib.evaluation.engine import (
    DEFAULT_EVAL_LIMITS,
    Engine,
    EngineLanguage,
    EngineRequest,
    EvalError,
    EvalFileWrite,
    EvalLimits,
    EvalParams,
    EvalResult,
    JsonValue,
)
from weakincentives.contrib.evaluation.files import WRITE_MODES, EvalWorkspace, QueuedFiles
from weakincentives.errors import ToolValidationError
from weakincentives.posix import display_path
from weakincentives.prompt import ToolResult

_RESERVED = frozenset({"read_text", "write_text", "print"})
_WORDS = {"true": "True", "false": "False", "null": "None"}
_FIELD = re.compile(r"\{\{([^{}]*)\}\}|\{([^\W\d]\w*)(\s*[.\[!:][^{}]*)?\}")


class Evaluator:
    """Runs `evaluate_python` calls in one engine."""

    def __init__(self, engine: Engine, *, limits: EvalLimits = DEFAULT_EVAL_LIMITS) -> None:
        """Use `engine` within `limits`."""
        self.engine: Engine = engine
        self.limits: EvalLimits = limits

    def run(
        self, params: EvalParams, workspace: EvalWorkspace, *, seconds: float | None = None
    ) -> ToolResult[EvalResult]:
        """Evaluate the code; return a failed result, with its value, if the code fails.

        Args:
            params: What the model sent.
            workspace: The files, and how paths are resolved.
            seconds: The time that is left; by default `limits.max_seconds`.

        Raises:
            ToolValidationError: The parameters are invalid; nothing ran.
            OSError: A declared file cannot be read; nothing ran.
            ValueError: The same.
            EngineUnavailableError: The engine does not work here.
        """
        result = self.evaluate(params, workspace, seconds=seconds)
        return ToolResult(
            render_result(result, self.engine.language),
            result,
            success=result.error is None,
            exclude_value_from_context=True,
        )

    def evaluate(
        self, params: EvalParams, workspace: EvalWorkspace, *, seconds: float | None = None
    ) -> EvalResult:
        """Evaluate the code and apply its writes; raises as `run` does."""
        check_params(params, self.limits)
        variables = decode_globals(params.globals, self.limits)
        files = QueuedFiles(workspace, self.limits)
        for each in params.reads:
            text = files.load(each)
            if each.name is not None:
                variables[each.name] = text
        allowed = self.limits.max_seconds if seconds is None else seconds
        limit = max(min(allowed, self.limits.max_seconds), 0.001)
        root = workspace.filesystem.root
        request = EngineRequest(params.code, variables, self.limits, limit, root)
        outcome = self.engine.evaluate(request, files)
        error = outcome.error
        if error is None:
            error = self._finish(params, files, outcome.globals)
        return EvalResult(
            value_repr=outcome.value_repr,
            stdout=outcome.stdout,
            stderr=outcome.stderr,
            globals=dict(outcome.globals),
            reads=files.reads,
            writes=files.writes if error is None else (),
            error=error,
            timed_out=outcome.timed_out,
            duration_ms=outcome.duration_ms,
            engine=self.engine.name,
        )

    def _finish(
        self, params: EvalParams, files: QueuedFiles, variables: Mapping[str, str]
    ) -> EvalError | None:
        """Queue the declared writes, and apply all; return why not."""
        written = {each.path for each in files.writes}
        try:
            for each in params.writes:
                content = expand_template(each.content, variables, self.limits.max_write_length)
                if files.resolve(each.path) in written:
                    raise ToolValidationError(
                        f"{display_path(each.path)!r} is in writes, and the code wrote it too;"
                        " use only one of the two"
                    )
                files.write_text(each.path, content, each.mode)
            files.apply()
        except (OSError, ValueError) as error:
            return EvalError(type(error).__name__, str(error), during="writes")
        return None


def check_params(params: EvalParams, limits: EvalLimits) -> None:
    """Check everything about a call that needs no files.

    Raises:
        ToolValidationError: A limit is exceeded, or a name or path is given twice.
    """
    if len(params.code) > limits.max_code_length:
        raise ToolValidationError(
            f"code has {len(params.code):,} characters; the limit is {limits.max_code_length:,}."
            " Split it into several calls, or put data into files and read them"
        )
    if not params.code.strip():
        raise ToolValidationError("code is empty; send the Python code to run")
    _check_text(params.code, "code")
    for what, count, allowed in (
        ("globals", len(params.globals), limits.max_globals),
        ("reads", len(params.reads), limits.max_reads),
        ("writes", len(params.writes), limits.max_writes),
    ):
        if count > allowed:
            raise ToolValidationError(f"{what} has {count} entries; the limit is {allowed}")
    names = [each.name for each in params.reads if each.name is not None]
    for name in (*params.globals, *names):
        _check_name(name)
    _check_unique((*params.globals, *names), "The variable {!r} is given twice")
    _check_unique([each.path for each in params.writes], "writes names the path {!r} twice")
    for each in params.writes:
        _check_text(each.content, f"The content for {each.path!r}")
        if each.mode not in WRITE_MODES:
            raise ToolValidationError(
                f"mode must be 'create', 'overwrite' or 'append': {each.mode!r}"
            )


def decode_globals(encoded: Mapping[str, str], limits: EvalLimits) -> dict[str, JsonValue]:
    """Return the variables that a call passes in.

    Raises:
        ToolValidationError: A value is not JSON, or exceeds the limits.
    """
    total = sum(map(len, encoded.values()))
    if total > limits.max_globals_length:
        raise ToolValidationError(
            f"globals has {total:,} characters; the limit is {limits.max_globals_length:,}."
            " Write the data to a file and read it"
        )
    return {name: _decode(name, text, limits) for name, text in encoded.items()}


def _decode(name: str, text: str, limits: EvalLimits) -> JsonValue:
    if len(text) > limits.max_global_length:
        raise ToolValidationError(
            f"The variable {name!r} has {len(text):,} characters;"
            f" the limit is {limits.max_global_length:,}. Write the data to a file and read it"
        )
    _check_text(text, f"The variable {name!r}")
    try:
        value: JsonValue = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        problem = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ToolValidationError(
            f"The variable {name!r} is not valid JSON text: {problem}; a string needs quotes,"
            ' for example "\\"text\\""'
        ) from None
    _check_depth(name, value, limits.max_global_depth)
    return value


def _check_depth(name: str, value: JsonValue, limit: int) -> None:
    level: list[JsonValue] = [value]
    for _ in range(limit + 1):
        level = [child for each in level for child in _children(each)]
        if not level:
            return
    raise ToolValidationError(
        f"The variable {name!r} is nested more than {limit} levels deep; make it flatter"
    )


def _children(value: JsonValue) -> Iterable[JsonValue]:
    if isinstance(value, Mapping):
        return value.values()
    return () if value is None or isinstance(value, str | int | float) else value


def _check_name(name: str) -> None:
    if not name.isidentifier() or keyword.iskeyword(name):
        raise ToolValidationError(f"Not a variable name: {name!r}")
    if name.startswith("__") or name in _RESERVED:
        raise ToolValidationError(f"A variable cannot have this name: {name!r}")


def _check_unique(values: Iterable[str], message: str) -> None:
    for value, count in Counter(values).items():
        if count > 1:
            raise ToolValidationError(message.format(value))


def _check_text(text: str, what: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ToolValidationError(f"{what} has a lone surrogate and cannot be UTF-8") from None
    if "\0" in text:
        raise ToolValidationError(f"{what} has a NUL character")


def expand_template(template: str, variables: Mapping[str, str], limit: int) -> str:
    """Return the text of a declared write with every `{name}` replaced, and nothing else.

    There are no attributes, indexes, conversions or format specifications, so a template cannot
    reach anything but the variables. `{{name}}` is a literal `{name}`. Other braces, such as those
    of JSON or CSS, stay as they are.

    Args:
        template: The content of a declared write.
        variables: The variables as JSON text. A string stands for itself; lists and objects are
            inserted as JSON, other values as Python prints them.
        limit: Characters that the values may have together.

    Raises:
        ToolValidationError: A name is unknown, more than a name is in the braces, or the values
            are too long.
    """
    room = limit

    def replace(match: re.Match[str]) -> str:
        nonlocal room
        literal, name, rest = match.groups()
        if literal is not None:
            return f"{{{literal}}}"
        if rest:
            raise ToolValidationError(
                f"A template can have names only: {match[0]!r}; assign the value to a variable"
                f" in the code and write {{variable}}, or write {{{match[0]}}} for literal text"
            )
        if name not in variables:
            raise ToolValidationError(_unknown_name(name, variables))
        text = _render_variable(variables[name])
        room -= len(text)
        if room < 0:
            raise ToolValidationError(
                f"The values in a template have more than {limit:,} characters; write less text"
            )
        return text

    return _FIELD.sub(replace, template)


def _render_variable(encoded: str) -> str:
    # only a string is decoded: a list may be nested more deeply than the decoder can go
    return json.loads(encoded) if encoded[:1] == '"' else _WORDS.get(encoded, encoded)


def _unknown_name(name: str, variables: Mapping[str, str]) -> str:
    known = ", ".join(sorted(variables)) or "none"
    return (
        f"The template uses {{{name}}}, but the code left no variable {name!r} that JSON can"
        f" represent (variables: {known}); assign it in the code, or write {{{{{name}}}}} for"
        " literal text"
    )


_MAX_VARIABLE = 200  # characters shown of one variable
_MAX_VARIABLES = 20  # variables shown
_VERBS = {"create": "Created", "overwrite": "Replaced", "append": "Appended to"}


def render_result(result: EvalResult, language: EngineLanguage) -> str:
    """Return what the model reads about an evaluation."""
    parts = [] if result.error is None else [_render_error(result, result.error)]
    if result.value_repr is not None and result.error is None:
        parts.append(f"Value: {result.value_repr}")
    parts += _render_stream("Printed:", result.stdout)
    parts += _render_stream("Printed to stderr:", result.stderr)
    if result.error is not None:
        parts.append(f"Nothing was written. {_next_step(result, result.error, language)}")
    else:
        parts += [_render_write(each) for each in result.writes]
        if not parts:
            parts.append(_render_silence(result))
    return "\n".join(parts)


def _render_error(result: EvalResult, error: EvalError) -> str:
    where = "" if error.line is None else f" at line {error.line}"
    message = f": {error.message}" if error.message else ""
    if error.during == "writes":
        text = f"The code ran, but its files could not be written{message}"
    elif result.timed_out:
        text = f"The code was stopped{where}{message}"
    else:
        text = f"The code failed{where}: {error.type}{message}"
    if error.source is not None and error.source.strip():
        text += f"\n    {error.source.strip()}"
    return text


def _render_stream(title: str, text: str) -> list[str]:
    return [f"{title}\n{text.rstrip()}"] if text.strip() else []


def _render_write(write: EvalFileWrite) -> str:
    count = len(write.content)
    length = "1 character" if count == 1 else f"{count:,} characters"
    return f"{_VERBS[write.mode]} {display_path(write.path)} ({length})."


def _render_silence(result: EvalResult) -> str:
    """Return the variables of code that printed nothing: the model may have expected them."""
    if not result.globals:
        return "The code ran and printed nothing; end it with an expression to see its value."
    shown = [
        f"{name} = {_shorten(value)}"
        for name, value in list(result.globals.items())[:_MAX_VARIABLES]
    ]
    return "The code ran and printed nothing. Variables:\n" + "\n".join(shown)


def _next_step(result: EvalResult, error: EvalError, language: EngineLanguage) -> str:
    if result.timed_out:
        return "Do less work in one call, and check that every loop ends."
    if error.type == "MemoryError":
        return "Use less memory: work on parts of the data, and keep only results."
    if error.during == "writes":
        return "Change the paths, modes or templates of the writes, and call the tool again."
    if error.type in {"ImportError", "ModuleNotFoundError"}:
        modules = ", ".join(language.modules)
        return f"These modules can be imported: {modules or 'those of Python and the workspace'}."
    if error.type == "NotImplementedError" and language.missing:
        return f"This Python has no {', no '.join(language.missing)}."
    return "Fix the code and call the tool again; every call starts with fresh variables."


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_VARIABLE else f"{text[:_MAX_VARIABLE]}..."
