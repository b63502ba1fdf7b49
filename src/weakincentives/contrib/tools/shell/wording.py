"""What a model is told about a command that has run."""

import re

from weakincentives.sandbox import ExecResult, Output
from weakincentives.sandbox.capture import Capture

_SHOWN_BINARY = 256  # bytes of what is no text
_UNSHOWABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def message(result: ExecResult, budget: int, *, captured: bool = True) -> str:
    """Return the exit code, both streams with their names, and what should be known.

    Args:
        result: How it ended.
        budget: How many characters the streams may take.
        captured: Whether its output was asked for.
    """
    parts = [_ending(result)]
    if not captured:
        parts.append("Its output was not asked for.")
    else:
        parts += _streams(*_fitting(result, budget))
    if result.stopped_processes:
        parts.append(_stopped(result.stopped_processes))
    return "\n".join(each.rstrip("\n") for each in parts)


def _streams(out: Output, err: Output) -> list[str]:
    named = (("stdout", out), ("stderr", err))
    shown = [f"{name}:\n{_text(each)}" for name, each in named if each.data or each.dropped]
    return [*shown, *_left_out(out, err)] if shown else ["No output."]


def _ending(result: ExecResult) -> str:
    seconds = f"{result.duration_ms / 1000:.1f} s"
    if result.timed_out:
        return (
            f"exit code {result.exit_code}: it ran out of time after {seconds} and was stopped,"
            " with everything that it had started. What it has written to files stays."
        )
    if result.signal:
        return f"exit code {result.exit_code}: {result.signal} ended it after {seconds}"
    return f"exit code {result.exit_code} after {seconds}"


def _fitting(result: ExecResult, budget: int) -> tuple[Output, Output]:
    """Return both streams, the longer one shortened first, so that both are within budget."""
    out, err = result.out, result.err
    half = budget // 2
    for_err = min(len(err.data), max(half, budget - len(out.data)))
    return _shortened(out, budget - for_err), _shortened(err, for_err)


def _shortened(output: Output, limit: int) -> Output:
    if len(output.data) <= limit:
        return output
    capture = Capture(limit)
    capture.feed(output.data)
    cut = capture.output()
    return Output(cut.head, cut.tail, cut.dropped + output.dropped)


def _text(output: Output) -> str:
    if b"\0" not in output.data:
        return _visible(output.text)
    size = len(output.data) + output.dropped
    shown = output.data[:_SHOWN_BINARY]
    rest = f"\n[... binary, {size:,} bytes in all ...]" if size > len(shown) else ""
    return _visible(Output(shown).text) + rest


def _visible(text: str) -> str:
    return _UNSHOWABLE.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def _left_out(out: Output, err: Output) -> list[str]:
    names = [name for name, each in (("stdout", out), ("stderr", err)) if each.truncated]
    if not names:
        return []
    return [
        f"[{' and '.join(names)}: only the beginning and the end are shown; to see the rest,"
        " write the output to a file and read parts of it]"
    ]


def _stopped(count: int) -> str:
    stopped = "1 process that it left running was" if count == 1 else f"{count} processes were"
    return f"[{stopped} stopped: nothing that a command starts runs on after the call]"
