"""What a step was about: its title in a line, who did it, and how its command ended."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from weakincentives.filesystem import is_byproduct
from weakincentives.history import Actor, StepKind, StepRecord
from weakincentives.runtime.events import CommandOutcome
from weakincentives.serde import SerdeError, convert

_MAX_TITLE = 100
_MAX_LINE = 200
_MAX_CODE = 60  # characters shown of code
_PREAMBLE = ("import ", "from ", "#")
_UNDO = "undo"  # the tool of an MCP server that takes calls back
# parameters that say what a call is about
_SUBJECTS = ("command", "cmd", "pattern", "query", "code")


def step_title(kind: StepKind, details: Mapping[str, Any]) -> str:
    """Return what happened in a step, in a line."""
    match kind:
        case "tool":
            text = _tool_title(details)
        case "test":
            text = call_subject(details.get("params") or {})
        case "model":
            calls = ", ".join(details.get("tool_calls") or ())
            text = details.get("text") or (f"calls {calls}" if calls else "answers")
        case "context":
            text = (
                f"compacted from {details.get('tokens_before', 0):,}"
                f" to {details.get('tokens_after', 0):,} tokens"
            )
        case _:
            text = details.get("prompt_name") or details.get("prompt_key") or kind
    line = " ".join(str(text).split())
    return line if len(line) <= _MAX_TITLE else f"{line[: _MAX_TITLE - 3]}..."


def _tool_title(details: Mapping[str, Any]) -> str:
    tool = details.get("tool", "tool")
    if tool == _UNDO:  # its arguments may be empty, and its paths are everything
        result = str(details.get("result_message") or details.get("error") or "")
        return f"{tool} {result.partition('. ')[0].removeprefix('Undid ')}"
    subject = call_subject(details.get("params") or {})
    paths = ", ".join(each for each in details.get("paths") or () if not is_byproduct(each))
    return f"{tool} {' · '.join(filter(None, (subject, paths)))}"


def describe_step(step: StepRecord) -> str:
    """Return what happened: of a prompt what the user said, of the end the answer, or the title."""
    if step.kind == "prompt":
        return step_request(step) or step.title
    if step.kind == "end":
        return _first_line(str(step.details.get("text") or "")) or step.title
    return step.title


def step_request(step: StepRecord) -> str:
    """Return the beginning of the last message of the user that a step added; empty without one."""
    added: tuple[Any, ...] = () if step.messages is None else step.messages.items
    for message in reversed(added):
        if isinstance(message, Mapping):
            found = cast("Mapping[str, object]", message)
            if found.get("role") == "user":
                return _first_line(str(found.get("text", "")))
    return ""


def _first_line(text: str) -> str:
    """Return the first line of a Markdown text, that is not a heading if there is one."""
    lines = [line for each in text.split("\n") if (line := each.strip())]
    return next((each for each in lines if each[0] != "#"), "".join(lines[:1]))[:_MAX_LINE]


def call_subject(params: Mapping[str, Any]) -> str:
    """Return what a tool call is about: its command, its pattern, or the first line of its code."""
    name = next((name for name in _SUBJECTS if params.get(name)), None)
    found: object = "" if name is None else params[name]
    if isinstance(found, list | tuple):
        return " ".join(map(str, cast("Sequence[object]", found)))
    return _code_subject(str(found)) if name == "code" else str(found)


def _code_subject(code: str) -> str:
    """Return the first line of code that is not an import, and how many lines there are."""
    lines = [line.strip() for line in code.splitlines() if line.strip()] or [""]
    first = next((line for line in lines if not line.startswith(_PREAMBLE)), lines[0])
    if len(first) > _MAX_CODE:
        first = f"{first[: _MAX_CODE - 3]}..."
    return first if len(lines) == 1 else f"{first} ({len(lines)} lines)"


def step_command(step: StepRecord) -> CommandOutcome | None:
    """Return how the command of a tool call ended, if it had one; the call itself may succeed."""
    found: object = step.details.get("command")
    if found is None:
        return None
    try:
        return convert(found, CommandOutcome)
    except SerdeError:  # another version, or nonsense
        return None


def step_actor(step: StepRecord) -> Actor:
    """Return who did what a step is about."""
    if step.client is not None:
        return "client"
    if step.kind in ("tool", "test"):
        return "tool" if step_command(step) is None else "command"
    return "model" if step.kind == "model" else "person"
