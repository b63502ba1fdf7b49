"""`wink log`, `show` and `fork`: the steps of a recorded run, one of them, a branch at one."""

import json
import posixpath
import shlex
import sys
from collections.abc import Iterator, Mapping
from typing import Any, cast
from uuid import UUID

import click

from weakincentives.cli.run.changes import describe_diff
from weakincentives.cli.runs import find_run
from weakincentives.cli.steps import (
    StepArgument,
    open_timeline,
    print_problem,
    require_step,
    split_arguments,
)
from weakincentives.cli.terminal import echo, escape_controls, is_terminal, shorten
from weakincentives.cli.units import format_count, format_duration, pick
from weakincentives.filesystem import is_byproduct
from weakincentives.filesystem.base import State
from weakincentives.gitstore import ObjectError
from weakincentives.posix import display_path, display_paths
from weakincentives.runtime.timeline import (
    StepRecord,
    StoredSession,
    Timeline,
    TimelineError,
    describe_step,
    fork_timeline,
    step_command,
)
from weakincentives.serde import to_builtins

_MAX_PATHS = 3
_TITLE_WIDTH = 60
_TASK_WIDTH = 100
_WITHOUT_OUTCOME = ("start", "prompt", "context", "files", "lost")
_MAX_LINES = 40
_MAX_CHARACTERS = 4_000
_MAX_PATCH_LINES = 200
_BLOCK = 1024 * 1024
_SHOWN_ELSEWHERE = frozenset(
    {
        *("command", "created_at", "duration_ms", "error", "event_id", "params", "result_message"),
        *("result_size", "run", "session_id", "success", "text", "tool", "usage"),
    }
)
_TEXTS = {"prompt": "System prompt", "model": "Answer", "end": "Answer"}
_INTERNAL = frozenset(
    {"adapter", "call_id", "prompt_key", "prompt_name", "prompt_ns", "snapshot_ref"}
)
"""Details that only --full shows."""


# --- log ---


def log(*, run: str, limit: int | None, path: str | None, as_json: bool) -> None:
    """List the steps of a run: prompts, answers and tool calls."""
    with open_timeline(run) as timeline:
        wanted = [
            step.number
            for step in timeline.steps
            if path is None or (step.parent is not None and _changes(step, path))
        ][-(limit or 0) :]
        if as_json:
            for number in wanted:
                click.echo(json.dumps(_describe_step(timeline, timeline.step(number))))
        else:
            for line in (*_describe_timeline(timeline), *_draw(timeline, set(wanted))):
                echo(line, err=False)
        print_problem(timeline)


def _changes(step: StepRecord, path: str) -> bool:
    """Return whether a step changed a path, or something below it."""
    wanted = posixpath.normpath(path).strip("/")
    return any(wanted == "." or f"{each}/".startswith(f"{wanted}/") for each in step.paths)


def _describe_step(timeline: Timeline, step: StepRecord) -> dict[str, Any]:
    """Return a step as data: what happened, what it cost, and the files that it changed."""
    command = step_command(step)
    return {
        **pick(step, "number", "parent", "branch", "kind", "actor", "undoes", "client"),
        **pick(step, "success", "duration_ms"),
        "title": describe_step(step),
        "created_at": step.created_at.isoformat(),
        "exit_code": None if command is None else command.exit_code,
        **_usage(step),
        **_describe_changes(timeline, step.number),
    }


def _describe_changes(timeline: Timeline, number: int) -> dict[str, Any]:
    try:
        return describe_diff(timeline.changes(number))
    except (TimelineError, ObjectError) as error:  # a step is lost
        return {"paths": timeline.step(number).paths, "problem": str(error)}


def _usage(step: StepRecord) -> dict[str, int | None]:
    found: object = step.details.get("usage")
    usage = cast("Mapping[str, Any]", found if isinstance(found, Mapping) else {})
    counts = {name: usage.get(name) for name in ("input_tokens", "output_tokens")}
    return {name: each if isinstance(each, int) else None for name, each in counts.items()}


def _describe_timeline(timeline: Timeline) -> Iterator[str]:
    header, details = timeline.header, timeline.step(1).details
    run: Mapping[str, Any] = details.get("run") or {}
    date = header.created_at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    yield str(timeline.path)
    yield f"session {header.session_id}, {date}, {format_count(len(timeline.steps), 'step')}"
    if served := details.get("mcp"):
        yield f"MCP clients on {display_path(str(served.get('workspace')))}"
    if run.get("task"):
        yield f"task: {shorten(str(run['task']), _TASK_WIDTH)}"


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
            yield f"{'| ' * depth}* {_describe_line(timeline, timeline.step(number))}"
        first, others = children.get(number, [])[:1], children.get(number, [])[1:]
        pending += [(each, depth, False) for each in first]
        pending += [(each, depth + 1, True) for each in reversed(others)]


def _describe_line(timeline: Timeline, step: StepRecord) -> str:
    """Return a step as one line."""
    command = step_command(step)
    has_failed = not step.success or (command is not None and command.failed)
    mark = " " if step.kind in _WITHOUT_OUTCOME else "✗" if has_failed else "✓"
    time = step.created_at.astimezone().strftime("%H:%M:%S")
    title = shorten(describe_step(step), _TITLE_WIDTH)
    line = f"{step.number:>3} {time} {mark} {'undo' if step.undoes else step.kind:<6} {title}"
    texts = (step.client or "", "" if command is None else str(command))
    facts = [shorten(each, _TITLE_WIDTH) for each in texts if each]
    if step.duration_ms is not None:
        facts.append(format_duration(step.duration_ms))
    tokens = sum(filter(None, _usage(step).values()))
    if tokens and step.kind == "model":
        facts.append(format_count(tokens, "token"))
    if step.files and step.parent is not None:
        facts += _describe_files(timeline, step)
    branch = "" if step.branch is None else f" @{step.branch}"
    return f"{line}{branch}" + (f"  [{', '.join(facts)}]" if facts else "")


def _describe_files(timeline: Timeline, step: StepRecord) -> list[str]:
    try:
        diff = timeline.changes(step.number)
        lines = [
            f"{display_path(change.path)}{'/' if change.is_directory else f' {count}'}"
            for change, count in zip(diff.entries, diff.line_counts, strict=True)
            if not is_byproduct(change.path)
        ]
    except (TimelineError, ObjectError):  # a step is lost
        lines = [display_path(path) for path in step.paths if not is_byproduct(path)]
    more = len(lines) - _MAX_PATHS
    return [*lines[:_MAX_PATHS], *([f"{more} more files"] if more > 0 else ())]


# --- show ---


def show(*, words: tuple[str, ...], path: str | None, full: bool, as_json: bool) -> None:
    """Show a step: parameters and result, messages, state, and the files that it changed."""
    run, steps = split_arguments(words, most=1, command="show")
    with open_timeline(run) as timeline:
        wanted = steps[0] if steps else StepArgument(str(timeline.last))
        step = timeline.step(wanted.resolve(timeline))
        path = wanted.path if path is None else path
        if path is not None:
            _print_file(timeline, step.number, path)
        elif as_json:
            facts = {**_describe_step(timeline, step), **_describe_content(timeline, step)}
            click.echo(json.dumps(facts, default=str))
        else:
            for line in _lines(timeline, step, full=full):
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


def _describe_content(timeline: Timeline, step: StepRecord) -> dict[str, Any]:
    """Return what a step added to conversation, session and files."""
    messages = () if step.messages is None else step.messages.items
    now: Mapping[UUID, StoredSession] = {}
    before: Mapping[UUID, StoredSession] = {}
    if not timeline.find_lost(step.number):
        now = timeline.sessions(step.number)
        before = {} if step.parent is None else timeline.sessions(step.parent)

    def count(session_id: UUID, name: str) -> int:
        known = before.get(session_id)
        return len(known.slices[name].items) if known and name in known.slices else 0

    return {
        "details": step.details,
        "messages": [to_builtins(each) for each in messages],
        "slices": [
            {
                "session_id": str(session_id),
                "type": name,
                "kept": kept,
                "removed": count(session_id, name) - kept,
                "items": now[session_id].slices[name].items[kept:],
            }
            for session_id, name, kept in (step.changed_slices() if now else ())
        ],
        "patch": _patch(timeline, step.number),
    }


def _patch(timeline: Timeline, number: int) -> str | None:
    try:
        return timeline.changes(number).patch()
    except (TimelineError, ObjectError):  # a step is lost
        return None


def _lines(timeline: Timeline, step: StepRecord, *, full: bool) -> Iterator[str]:
    content = _describe_content(timeline, step)
    yield _describe_line(timeline, step)
    date = step.created_at.astimezone().isoformat(sep=" ", timespec="milliseconds")
    after = "" if step.parent is None else f", after step {step.parent}"
    branch = "" if step.branch is None else f", begins branch {step.branch!r}"
    yield f"{date}{after}{branch}"
    if not step.success:
        yield "It failed: everything that it changed was rolled back."
    yield from _detail_lines(step, full=full)
    yield from _message_lines(step, content["messages"], full=full)
    if content["slices"]:
        yield "\nState changed:"
    for each in content["slices"]:
        added, removed = len(each["items"]), each["removed"]
        replaced = min(added, removed)
        counts = {"replaced": replaced, "added": added - replaced, "removed": removed - replaced}
        shown = ", ".join(f"{count} {verb}" for verb, count in counts.items() if count)
        yield f"  {each['type'].rpartition(':')[2]}: {shown}"
    if content["patch"] is None:
        yield f"\nFiles changed: {display_paths(step.paths) or 'unknown'} (see below)"
    else:
        yield from _file_lines(timeline, step, content["patch"].split("\n"), full=full)


def _detail_lines(step: StepRecord, *, full: bool) -> Iterator[str]:
    details = step.details
    yield from _table_lines("Parameters", details.get("params"), full=full)
    text = _TEXTS.get(step.kind, "Text")
    for name, title in (("result_message", "Result"), ("error", "Error"), ("text", text)):
        if details.get(name) and (step.kind, name) != ("tool", "text"):
            yield f"\n{title}:"
            yield from _indent(str(details[name]), full=full)
    yield from _table_lines("Usage", details.get("usage"), full=full)
    yield from _table_lines("Settings", details.get("run"), full=full)
    left_out = _SHOWN_ELSEWHERE if full else _SHOWN_ELSEWHERE | _INTERNAL
    others = {key: value for key, value in details.items() if key not in left_out}
    yield from _table_lines("Details", others, full=full)


def _table_lines(title: str, table: object, *, full: bool) -> Iterator[str]:
    values = cast("Mapping[str, Any]", table if isinstance(table, Mapping) else {})
    given = {name: value for name, value in values.items() if value not in (None, "", [], {})}
    if given:
        yield f"\n{title}:"
    for name, value in given.items():
        text = value if isinstance(value, str) else json.dumps(value, default=str)
        if "\n" in text:
            yield f"  {name}:"
            yield from _indent(text, full=full, by=4)
        else:
            yield from _indent(f"{name}: {text}", full=full)


def _message_lines(
    step: StepRecord, messages: list[dict[str, Any]], *, full: bool
) -> Iterator[str]:
    if messages:
        yield f"\nMessages added: {len(messages)}"
    for message in messages:
        role, text = message.get("role", "?"), str(message.get("text", ""))
        calls = [str(call.get("name")) for call in message.get("tool_calls") or ()]
        yield f"  {role}{': calls ' + ', '.join(calls) if calls else ''}"
        if text and text not in (step.details.get("text"), step.details.get("result_message")):
            yield from _indent(text, full=full)


def _file_lines(
    timeline: Timeline, step: StepRecord, patch: list[str], *, full: bool
) -> Iterator[str]:
    if step.parent is None:
        yield f"\nFiles: {format_count(len(timeline.entries(step.number)), 'path')}"
        return
    changes = timeline.changes(step.number)
    if not changes:
        return
    yield f"\nFiles changed: {changes.statistics}"
    shown = patch if full else patch[:_MAX_PATCH_LINES]
    yield "\n".join(shown)
    if len(shown) < len(patch):
        command = f"wink diff {display_path(str(timeline.path))} {step.number}"
        yield f"[{len(patch) - len(shown)} more lines: {command}]"


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


# --- fork ---


def fork(*, words: tuple[str, ...], name: str | None, as_json: bool) -> None:
    """Begin a branch after a step; wink resume RUN --at @NAME continues it."""
    run, steps = split_arguments(words, most=1, command="fork")
    found = find_run(run, "steps")
    with open_timeline(found) as timeline:
        path, number = timeline.path, require_step(steps, timeline)
    try:
        step = fork_timeline(path, number, name)
    except TimelineError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        data = {"timeline": str(path), "branch": step.branch, "step": step.number, "parent": number}
        click.echo(json.dumps(data))
    else:
        echo(
            f"Branch {step.branch!r} begins after step {number}. To continue it:"
            f" wink resume {shlex.quote(found.name)} --at @{step.branch} 'what to do'"
        )
