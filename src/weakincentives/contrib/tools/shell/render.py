"""Results of commands for a model: exit code, output, and what to do about the rest."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from weakincentives.characters import strip_byte_escapes
from weakincentives.contrib.tools.context import HandlerContext
from weakincentives.contrib.tools.handlers.render import hint
from weakincentives.contrib.tools.requests import BashStartParams, ReadFileParams, ShellStartParams
from weakincentives.contrib.tools.shell.kept_output import KeptFile, OutputSpool
from weakincentives.prompt import ToolResult
from weakincentives.runtime import CommandOutcome
from weakincentives.sandbox import ExecResult, Output, PollResult

_MAX_NETWORK_NOTES = 5
_MAX_BINARY = 256  # bytes shown of binary output
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_STYLE = re.compile(rb"\x1b\[[0-9;:]*m")
_MAX_TAIL = 4_000  # characters of the output's end in an event
_TAIL_LINES = 10
_START_WAIT = 1_000  # milliseconds, in the advice to start something in the background

ResultT = TypeVar("ResultT", bound=ExecResult | PollResult)
Streams: TypeAlias = Mapping[str, Output]
"""What is shown of each stream."""


def render_result(result: ExecResult, spool: OutputSpool | None, context: HandlerContext) -> str:
    """Return how a command ended and what it printed; keep what is too long in a file.

    Without a `spool`, the output was not captured.
    """
    parts = [render_exit(result)]
    if spool is None:
        parts.append("Output was not captured.")
    else:
        streams = fit_streams(result.out, result.err, context.settings.budget)
        cut = [name for name, each in streams.items() if each.truncated]
        parts += render_streams(streams, spool.store(context.filesystem, *cut), context)
    parts += network_notes(result)
    if result.stopped_processes:
        parts.append(_stopped_note(result.stopped_processes, context))
    return join_parts(parts)


def network_notes(result: ExecResult | PollResult) -> list[str]:
    """Return why connections were refused or have failed, which many programs do not print."""
    reasons = [each.reason for each in result.connections if each.reason.startswith("wink: ")]
    notes = [f"[network: {each[6:]}]" for each in dict.fromkeys(reasons)]
    more = len(notes) - _MAX_NETWORK_NOTES
    return [*notes[:_MAX_NETWORK_NOTES], *([f"[network: {more} more]"] if more > 0 else [])]


def join_parts(parts: Sequence[str]) -> str:
    """Return the parts of a message, each on a line of its own."""
    return "\n".join(each.rstrip("\n") for each in parts)


def render_streams(
    streams: Streams, kept: Mapping[str, KeptFile], context: HandlerContext
) -> list[str]:
    """Return both streams, and where the rest of those that were cut is."""
    texts = [
        f"{name}:\n{_render_output(each)}"
        for name, each in streams.items()
        if each.data or each.dropped
    ]
    notes = [
        _truncation_note(name, each, kept.get(name), context)
        for name, each in streams.items()
        if each.truncated
    ]
    return [*texts, *notes] if texts else ["No output."]


def render_exit(result: ExecResult | PollResult) -> str:
    """Return how a command ended, and how long it ran."""
    seconds = render_seconds(result)
    if isinstance(result, ExecResult) and result.timed_out:
        return (
            f"exit code {result.exit_code}: timed out after {seconds}; the command and all"
            " processes it started were stopped. Files it wrote are kept."
        )
    if result.signal:
        return f"exit code {result.exit_code}: ended by {result.signal} after {seconds}"
    return f"exit code {result.exit_code} after {seconds}"


def command_result(
    text: str, result: ResultT, context: HandlerContext, spool: OutputSpool | None = None
) -> ToolResult[ResultT]:
    """Return the result of a call, and for those who watch the run how the command ended.

    `spool` has the output in the order in which it was printed, if that is known.
    """
    both = b"\n".join(filter(None, (result.out.data, result.err.data)))
    tail = spool.tail if spool is not None and spool.tail else both
    streams = fit_streams(result.out, result.err, context.settings.budget)
    outcome = CommandOutcome(
        exit_code=result.exit_code,
        signal=result.signal,
        timed_out=isinstance(result, ExecResult) and result.timed_out,
        truncated=any(each.truncated for each in streams.values()),
        tail=_last_lines(tail, _TAIL_LINES if result.exit_code else 1),
        styled=_render_styled(result, context.settings.budget),
    )
    return ToolResult(text, result, exclude_value_from_context=True, command=outcome)


def _last_lines(data: bytes, count: int) -> str:
    text = Output(strip_byte_escapes(data)).text
    lines = _escape_controls(text[-_MAX_TAIL:]).rstrip().split("\n")
    return "\n".join(lines[-count:])


def _render_styled(result: ExecResult | PollResult, budget: int) -> str:
    """Return the output with its colours, for people; empty if it has none."""
    if not any(_STYLE.search(each.data) for each in (result.out, result.err)):
        return ""
    streams = _fit(result.out, result.err, budget)
    return "\n".join(each.text.rstrip("\n") for each in streams.values() if each.data)


def render_seconds(result: ExecResult | PollResult) -> str:
    """Return how long a command ran."""
    return f"{result.duration_ms / 1000:.1f} s"


def fit_streams(out: Output, err: Output, budget: int) -> Streams:
    """Return both streams within a number of characters; the longer one is shortened first.

    Escape sequences of terminals are left out.
    """
    return _fit(_strip(out), _strip(err), budget)


def _strip(output: Output) -> Output:
    if b"\0" in output.data:
        return output  # binary, and no terminal is meant
    head, tail = map(strip_byte_escapes, (output.head, output.tail))
    return Output(head, tail, output.dropped)


def _fit(out: Output, err: Output, budget: int) -> Streams:
    half = budget // 2
    for_err = min(len(err.data), max(half, budget - len(out.data)))
    return {"stdout": out.shorten(budget - for_err), "stderr": err.shorten(for_err)}


def _render_output(output: Output) -> str:
    if b"\0" not in output.data:
        return _escape_controls(output.text)
    size = len(output.data) + output.dropped
    head = output.data[:_MAX_BINARY]
    rest = f"\n[... binary, {size:,} bytes in all ...]" if size > len(head) else ""
    return _escape_controls(Output(head).text) + rest


def _escape_controls(text: str) -> str:
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def _truncation_note(
    name: str, shown: Output, kept: KeptFile | None, context: HandlerContext
) -> str:
    text = f"[truncated: only the beginning and end of {name} are shown; "
    if kept is None or not kept.path:
        reason = f" (it could not be kept: {kept.problem})" if kept is not None else ""
        return f"{text}to see all of it{reason}, redirect it to a file and read that in parts]"
    amount = "all" if kept.kept == kept.size else f"the first {kept.kept:,} of"
    text += f"{amount} {kept.size:,} bytes are in {kept.path!r}"
    gap = ReadFileParams(kept.path, offset=shown.head.count(b"\n"))
    return text + hint("; to read on:", context.dialect.format_call(gap)) + "]"


def _stopped_note(count: int, context: HandlerContext) -> str:
    stopped = "1 background process was" if count == 1 else f"{count} background processes were"
    return (
        f"[{stopped} stopped: processes do not outlive the call that started them"
        f"{hint('; to keep one running, use', _start_call(context))}]"
    )


def _start_call(context: HandlerContext) -> str | None:
    """Return the call that starts something in the background; None if there is no such tool."""
    requests: tuple[Any, ...] = (ShellStartParams(("",)), BashStartParams("", wait=_START_WAIT))
    calls = (context.dialect.format_call(each, "env", "wait") for each in requests)
    return next((each for each in calls if each is not None), None)
