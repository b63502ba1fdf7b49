"""The text of an evaluation for the model."""

from weakincentives.contrib.evaluation.engine import EngineLanguage
from weakincentives.contrib.evaluation.params import EvalError, EvalFileWrite, EvalResult
from weakincentives.posix import display_path

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
