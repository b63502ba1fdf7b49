"""`wink log`: the steps of a recorded run, with its branches drawn as a tree."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, cast

import click

from weakincentives.cli.completion import complete_run
from weakincentives.cli.run.diff_view import describe_diff
from weakincentives.cli.runs import LAST
from weakincentives.cli.steps import open_timeline
from weakincentives.cli.terminal import echo, shorten
from weakincentives.cli.units import format_count, format_duration
from weakincentives.posix import display_path
from weakincentives.runtime.timeline import StepRecord, Timeline

_MAX_PATHS = 3
_TITLE_WIDTH = 60
_WITHOUT_OUTCOME = ("start", "prompt", "context", "files")


@click.command()
@click.argument("run", default=LAST, shell_complete=complete_run)
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Only the last N steps.")
@click.option("--files", "path", metavar="PATH", help="Only steps that changed PATH or below it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per step.")
def command(*, run: str, limit: int | None, path: str | None, as_json: bool) -> None:
    """List the steps of a run: prompts, answers and tool calls.

    RUN is the ID of a run or its beginning, a path, or last, the newest run, which is the
    default. A tool call marked ✗ failed and was rolled back.
    """
    with open_timeline(run) as timeline:
        wanted = _select(timeline, path, limit)
        if as_json:
            for step in timeline.steps:
                if step.number in wanted:
                    click.echo(json.dumps(describe_step(timeline, step)))
        else:
            echo(_describe_timeline(timeline), err=False)
            for line in _draw(timeline, wanted):
                echo(line, err=False)
        print_problem(timeline)


def print_problem(timeline: Timeline) -> None:
    """Print what is missing from a timeline that was cut off or damaged."""
    if timeline.problem is not None:
        echo(f"wink: {timeline.problem}")


def describe_step(timeline: Timeline, step: StepRecord) -> dict[str, Any]:
    """Return a step as data: what happened, what it cost, and the files that it changed."""
    usage = _usage(step)
    return {
        "number": step.number,
        "parent": step.parent,
        "branch": step.branch,
        "kind": step.kind,
        "title": step.title,
        "client": step.client,
        "created_at": step.created_at.isoformat(),
        "success": step.success,
        "exit_code": None if step.command is None else step.command.exit_code,
        "duration_ms": step.duration_ms,
        "input_tokens": usage.get("input_tokens"),
        "output_tokens": usage.get("output_tokens"),
        **describe_diff(timeline.changes(step.number)),
    }


def describe_line(timeline: Timeline, step: StepRecord) -> str:
    """Return a step as one line."""
    command = step.command
    has_failed = not step.success or (command is not None and command.failed)
    mark = " " if step.kind in _WITHOUT_OUTCOME else "✗" if has_failed else "✓"
    parts = [
        f"{step.number:>3}",
        step.created_at.astimezone().strftime("%H:%M:%S"),
        mark,
        f"{step.kind:<6}",
        shorten(step.title, _TITLE_WIDTH),
    ]
    client = step.client
    facts: list[str] = [] if client is None else [shorten(client, _TITLE_WIDTH)]
    if command is not None and str(command):
        facts.append(shorten(str(command), _TITLE_WIDTH))
    if step.duration_ms is not None:
        facts.append(format_duration(step.duration_ms))
    tokens = sum(value for value in _usage(step).values())
    if tokens and step.kind == "model":
        facts.append(format_count(tokens, "token"))
    if step.files and step.parent is not None:
        facts += _describe_files(timeline, step)
    if step.branch is not None:
        parts.append(f"@{step.branch}")
    return " ".join(parts) + (f"  [{', '.join(facts)}]" if facts else "")


def _select(timeline: Timeline, path: str | None, limit: int | None) -> set[int]:
    numbers = [
        step.number
        for step in timeline.steps
        if path is None or (step.parent is not None and _touches(step, path.strip("/")))
    ]
    return set(numbers if limit is None else numbers[-limit:])


def _touches(step: StepRecord, path: str) -> bool:
    """Return whether a step changed a path, something below it, or a directory above it."""
    return any(
        each == path or each.startswith(f"{path}/") or path.startswith(f"{each}/")
        for each in (*step.files.removed, *(e.path for e in step.files.entries))
    )


def _describe_timeline(timeline: Timeline) -> str:
    header = timeline.header
    date = header.created_at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    run: Mapping[str, Any] = timeline.step(1).details.get("run") or {}
    lines = [
        f"{timeline.path}",
        f"session {header.session_id}, {date}, {format_count(len(timeline.steps), 'step')}",
    ]
    if served := timeline.step(1).details.get("mcp"):
        lines.append(f"MCP clients on {display_path(str(served.get('workspace')))}")
    if run.get("task"):
        lines.append(f"task: {shorten(str(run['task']), 100)}")
    return "\n".join(lines)


def _draw(timeline: Timeline, wanted: set[int]) -> Iterator[str]:
    """Yield the steps as a tree: a branch stands indented below the step that it leaves."""
    children: dict[int | None, list[int]] = {}
    for step in timeline.steps:
        children.setdefault(step.parent, []).append(step.number)
    pending = [(1, 0, False)]
    while pending:
        number, depth, forks = pending.pop()
        if number in wanted:
            if forks:
                yield f"{'| ' * (depth - 1)}|\\"
            yield f"{'| ' * depth}* {describe_line(timeline, timeline.step(number))}"
        first, others = children.get(number, [])[:1], children.get(number, [])[1:]
        pending += [(each, depth, False) for each in first]
        pending += [(each, depth + 1, True) for each in reversed(others)]


def _usage(step: StepRecord) -> dict[str, int]:
    found: object = step.details.get("usage")
    if not isinstance(found, Mapping):
        return {}
    usage = cast("Mapping[str, Any]", found)
    names = ("input_tokens", "output_tokens")
    return {name: usage[name] for name in names if isinstance(usage.get(name), int)}


def _describe_files(timeline: Timeline, step: StepRecord) -> Iterator[str]:
    diff = timeline.changes(step.number)
    counts = zip(diff.entries, diff.line_counts, strict=True)
    lines = [
        f"{display_path(change.path)}{'/' if change.is_directory else f' {count}'}"
        for change, count in counts
    ]
    yield from lines[:_MAX_PATHS]
    if len(lines) > _MAX_PATHS:
        yield f"{len(lines) - _MAX_PATHS} more files"
