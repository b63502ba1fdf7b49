"""`wink show`: one step of a recorded run, or a file as it was then."""

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any, cast
from uuid import UUID

import click

from weakincentives.cli.completion import complete_run
from weakincentives.cli.run.diff_view import describe_diff
from weakincentives.cli.steps import StepArgument, open_timeline, split_arguments
from weakincentives.cli.terminal import echo, escape_controls, is_terminal
from weakincentives.cli.timeline.log import describe_line, describe_step, print_problem
from weakincentives.cli.units import format_count
from weakincentives.filesystem.base import State
from weakincentives.posix import display_path
from weakincentives.runtime.timeline import StepRecord, Timeline
from weakincentives.serde import to_builtins

_MAX_LINES = 40
_MAX_CHARACTERS = 4_000
_MAX_PATCH_LINES = 200
_BLOCK = 1024 * 1024
_SHOWN_ELSEWHERE = frozenset(
    {
        "created_at",
        "duration_ms",
        "error",
        "event_id",
        "params",
        "result_message",
        "result_size",
        "session_id",
        "success",
        "text",
        "tool",
        "usage",
    }
)


@click.command()
@click.argument("words", nargs=-1, shell_complete=complete_run, metavar="[RUN] [STEP[:PATH]]")
@click.option("--file", "path", metavar="PATH", help="Print this file as it was after the step.")
@click.option("--full", is_flag=True, help="Do not shorten long texts.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with everything.")
def command(*, words: tuple[str, ...], path: str | None, full: bool, as_json: bool) -> None:
    """Show a step: parameters and result, messages, slices, and the files that it changed.

    A STEP is a number, or @NAME for the newest step of a branch; without it, this is the last
    step. STEP:PATH prints a file as it was after the step, byte by byte. RUN comes first;
    without it, this is the newest run.
    """
    run, steps = split_arguments(words, most=1, command="show")
    with open_timeline(run) as timeline:
        wanted = steps[0] if steps else StepArgument(str(timeline.last))
        number = wanted.resolve(timeline)
        path = wanted.path if path is None else path
        if path is not None:
            _print_file(timeline, number, path)
        elif as_json:
            click.echo(json.dumps(_describe(timeline, number), default=str))
        else:
            for line in _lines(timeline, timeline.step(number), full=full):
                echo(line, err=False)
        print_problem(timeline)


def _print_file(timeline: Timeline, number: int, path: str) -> None:
    """Write a file to standard output: its bytes, or on a terminal its text without controls."""
    is_text = is_terminal(sys.stdout)
    with State(timeline.files(number)).open(path.strip("/")) as content:
        for offset in range(0, content.size, _BLOCK):
            block = content.read(offset, min(_BLOCK, content.size - offset))
            if is_text:
                click.echo(escape_controls(block.decode("utf-8", "replace")), nl=False)
            else:
                sys.stdout.buffer.write(block)
    sys.stdout.flush()


def _describe(timeline: Timeline, number: int) -> dict[str, Any]:
    step = timeline.step(number)
    changes = timeline.changes(number)
    return {
        **describe_step(timeline, step),
        "details": step.details,
        "messages": _added_messages(step),
        "slices": [
            {"session_id": str(session), "type": name, "kept": kept, "items": items}
            for session, name, kept, items in _changed_slices(timeline, step)
        ],
        **describe_diff(changes),
        "patch": changes.patch(),
    }


def _lines(timeline: Timeline, step: StepRecord, *, full: bool) -> Iterator[str]:
    yield describe_line(timeline, step)
    date = step.created_at.astimezone().isoformat(sep=" ", timespec="milliseconds")
    after = "" if step.parent is None else f", after step {step.parent}"
    branch = "" if step.branch is None else f", begins branch {step.branch!r}"
    yield f"{date}{after}{branch}"
    if not step.success:
        yield "It failed: everything that it changed was rolled back."
    yield from _detail_lines(step, full=full)
    yield from _message_lines(step, full=full)
    yield from _slice_lines(timeline, step)
    yield from _file_lines(timeline, step, full=full)


def _detail_lines(step: StepRecord, *, full: bool) -> Iterator[str]:
    details = step.details
    yield from _table_lines("Parameters", details.get("params"), full=full)
    for name, title in (("result_message", "Result"), ("error", "Error"), ("text", "Text")):
        if details.get(name) and (step.kind, name) != ("tool", "text"):
            yield f"\n{title}:"
            yield from _indent(str(details[name]), full=full)
    yield from _table_lines("Usage", details.get("usage"), full=full)
    others = {key: value for key, value in details.items() if key not in _SHOWN_ELSEWHERE}
    yield from _table_lines("Details", others, full=full)


def _table_lines(title: str, table: object, *, full: bool) -> Iterator[str]:
    if not isinstance(table, Mapping):
        return
    values = cast("Mapping[str, Any]", table)
    given = {name: value for name, value in values.items() if value not in (None, "", [], {})}
    if given:
        yield f"\n{title}:"
    for name, value in given.items():
        yield from _value_lines(name, value, full=full)


def _message_lines(step: StepRecord, *, full: bool) -> Iterator[str]:
    messages = _added_messages(step)
    if messages:
        yield f"\nMessages added: {len(messages)}"
    for message in messages:
        role, text = message.get("role", "?"), str(message.get("text", ""))
        calls = [str(call.get("name")) for call in message.get("tool_calls") or ()]
        yield f"  {role}{': calls ' + ', '.join(calls) if calls else ''}"
        if text and text not in (step.details.get("text"), step.details.get("result_message")):
            yield from _indent(text, full=full)


def _changed_slices(
    timeline: Timeline, step: StepRecord
) -> Iterator[tuple[UUID, str, int, list[Any]]]:
    """Yield each slice that a step changed: session, type, how many items stay, and the others."""
    now = timeline.sessions(step.number)
    for session in step.sessions:
        for each in session.slices:
            items, keep = now[session.session_id].slices[each.type].items, each.change.keep
            yield session.session_id, each.type, keep, items[keep:]


def _slice_lines(timeline: Timeline, step: StepRecord) -> Iterator[str]:
    changes = list(_changed_slices(timeline, step))
    if changes:
        yield "\nSlices changed:"
    for _, name, kept, items in changes:
        yield f"  {name}: {format_count(len(items), 'item')} after the first {kept}"


def _file_lines(timeline: Timeline, step: StepRecord, *, full: bool) -> Iterator[str]:
    if step.parent is None:
        yield f"\nFiles: {format_count(len(timeline.entries(step.number)), 'path')}"
        return
    changes = timeline.changes(step.number)
    if not changes:
        return
    yield f"\nFiles changed: {changes.statistics}"
    lines = changes.patch().split("\n")
    shown = lines if full else lines[:_MAX_PATCH_LINES]
    yield "\n".join(shown)
    if len(shown) < len(lines):
        yield (
            f"[{len(lines) - len(shown)} more lines: wink diff {display_path(str(timeline.path))}"
            f" {step.number}]"
        )


def _added_messages(step: StepRecord) -> list[dict[str, Any]]:
    items = () if step.messages is None else step.messages.items
    return [cast("dict[str, Any]", to_builtins(each)) for each in items]


def _value_lines(name: str, value: Any, *, full: bool) -> Iterator[str]:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    if "\n" in text:
        yield f"  {name}:"
        yield from _indent(text, full=full, by=4)
    else:
        yield from _indent(f"{name}: {text}", full=full)


def _indent(text: str, *, full: bool, by: int = 2) -> Iterator[str]:
    """Yield the lines of a text; a long one is shortened, and says so."""
    shown = text if full else text[:_MAX_CHARACTERS]
    lines = shown.split("\n")
    kept = lines if full else lines[:_MAX_LINES]
    for line in kept:
        yield f"{' ' * by}{line}"
    rest = len(text) - len("\n".join(kept))
    if rest > 0:
        yield f"{' ' * by}[{format_count(rest, 'more character')}; --full shows all]"
