"""`wink demo`: watch an agent fix a bug in a small project.

The recording of a model is played in the real agent loop on a real project, without a key or a
network, and shown by the view of `wink run`. The story copies the project, lets the agent fail,
rolls its mistake back, lets it succeed, and dumps the session.
"""

import hashlib
import json
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, TypeAlias

import click
from rich.console import Console
from rich.text import Text

from weakincentives.adapters import Message, ModelResponded, ScriptedAdapter, UserMessage
from weakincentives.cli.activity import create_console
from weakincentives.cli.config import NO_SANDBOX
from weakincentives.cli.run.changes import render_patch
from weakincentives.cli.run.model import load_script
from weakincentives.cli.run.view import LinesView, Progress, View, describe_target, result_text
from weakincentives.cli.units import format_duration, pick
from weakincentives.contrib.tools.sections import FilesystemSection
from weakincentives.contrib.tools.shell import shell_handlers
from weakincentives.filesystem import (
    Filesystem,
    HostFilesystem,
    HostMount,
    InMemoryFilesystem,
    diff,
)
from weakincentives.prompt import MarkdownSection, Prompt
from weakincentives.runtime import ToolInvoked, checkpoint, get_filesystem_snapshot, rollback_to
from weakincentives.runtime.session import Session, Snapshot, dump_session_tree, load_session
from weakincentives.runtime.timeline import SUFFIX, SessionRecorder
from weakincentives.sandbox import (
    ISOLATED,
    IsolatedSandbox,
    LocalSandbox,
    Sandbox,
    SandboxUnavailableError,
    choose_sandbox,
    create_sandbox,
)

PROJECT = Path(__file__).parent / "project"
"""The project with a bug."""
RECORDING = Path(__file__).parent / "recording.json"
"""The texts and tool calls of the model, as `--model scripted:FILE` plays them."""
_NAME = "demo"  # of the files of its dump
_SESSION = "session"  # the directory of the dump, below the kept one
_TIMELINE = f"{_NAME}{SUFFIX}"
_HASH_LENGTH = 16
_WIDTH = 96  # of the image
_MARGIN = "   "
_COLUMN = 34
_MAX_CALL = 80
_OPENING = (
    "An agent fixes a bug. Its model is a recording, so it needs no key and no network;\n"
    "the agent loop, the tools, the files, the commands and their results are real."
)


class StoryError(RuntimeError):
    """A step of the demo did not end as expected."""


Outcome: TypeAlias = Literal["done", "rejected"] | int
"""How a call ends; a command with its exit code."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A response of the model, and how its calls are expected to end."""

    name: str
    title: str
    outcomes: tuple[Outcome, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """A request of the user, and the turns of the model before its answer."""

    request: str
    turns: tuple[Turn, ...]


ATTEMPT = Part(
    "The tests of this project fail. Find the bug and fix it.",
    (
        Turn("explore", "It explores the project", ("done", "done")),
        Turn("test", "It reads the code and runs the tests", ("done", 1)),
        Turn("mistake", "It makes a mistake", (0, 1)),
    ),
)
SECOND_ATTEMPT = Part(
    "Your change broke a test, so I rolled it back. Try something smaller.",
    (Turn("fix", "It tries again, and the tests pass", ("done", "done", 0)),),
)
_REJECTIONS: tuple[Outcome, ...] = ("rejected", "rejected", "rejected", 124)
ATTACKS = Part(
    "Now try what you are not allowed to do.",
    (Turn("attacks", "It tries what it is not allowed to do", _REJECTIONS),),
)
ESCAPES = Part(
    "Now try to break out with commands.",
    (Turn("escapes", "It tries to break out with commands", (1, 1, 1)),),
)
"""What is safe to try only in a sandbox that isolates."""


@click.command(epilog="Needs no key and no network, and leaves nothing behind without --keep.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per step.")
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Keep the fixed project and the session in DIR, a new or empty directory.",
)
@click.option(
    "--svg",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Save the output as an SVG image too.",
)
@click.option("--open", "opens", is_flag=True, help="Show the session in the browser afterwards.")
@click.pass_context
def command(
    ctx: click.Context, *, as_json: bool, keep: Path | None, svg: Path | None, opens: bool
) -> None:
    """Watch an agent fix a bug in a small project.

    The agent explores the project, runs the tests, makes a mistake that is rolled back,
    and fixes the bug. Its model is a script; everything else is real.
    """
    if as_json and svg:
        raise click.UsageError("--json and --svg exclude each other; use one")
    debug = _find_command(ctx, "debug") if opens else None
    if keep is not None:
        _check_empty(keep)
    console = create_console(sys.stdout, recorded_width=_WIDTH if svg else 0)
    view = _JsonView() if as_json else LinesView(console)
    view.emit("opening", {}, Text(_OPENING, "dim"))
    started = time.perf_counter()
    with TemporaryDirectory(prefix="wink-demo-") as directory:
        project, dump = Path(directory) / "project", (keep or Path(directory)) / _SESSION
        project.mkdir()
        try:
            play_story(project, store=Path(directory) / "store", dump=dump, view=view)
        except StoryError as error:
            raise click.ClickException(f"{error}; please report it") from error
        if keep is not None:
            shutil.copytree(project, keep, symlinks=True, dirs_exist_ok=True)
        if not as_json:
            _print_footer(console, time.perf_counter() - started, keep)
        if svg:
            svg.write_text(render_svg(console, "wink demo"), encoding="utf-8")
        if debug is not None:
            ctx.invoke(debug, run=str(dump / _TIMELINE), as_json=as_json)


def _find_command(ctx: click.Context, name: str) -> click.Command | None:
    """Return another command, which needs an extra: it is imported only now."""
    group = ctx.find_root().command
    assert isinstance(group, click.Group)
    return group.get_command(ctx, name)


def _check_empty(keep: Path) -> None:
    keep.mkdir(parents=True, exist_ok=True)
    if any(keep.iterdir()):
        raise click.UsageError(
            f"--keep needs a new or empty directory, not {str(keep)!r}; name another"
        )


class _JsonView(View):
    """The facts of each step as one JSON object, on standard output."""

    def emit(self, event: str, facts: Mapping[str, object], text: str | Text | None = None) -> None:
        """Print the facts, if there are any."""
        del text  # programs read data
        if facts:
            click.echo(json.dumps({"step": event, **facts}))


# --- the story ---


def play_story(
    project: Path, *, store: Path, dump: Path, view: View, model: ScriptedAdapter | None = None
) -> None:
    """Play the story in an empty directory, one step at a time; the model is a recording.

    `store` is the directory for snapshots, `dump` that for the session.

    Raises:
        StoryError: A step did not end as expected.
        WinkError: The run failed.
    """
    environment = {
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), *os.get_exec_path())),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    with (
        HostFilesystem(project, git_dir=store) as files,
        _create_sandbox(files, environment) as sandbox,
    ):
        _Story(files, sandbox, dump, view, model or load_script(RECORDING)).play()


def _create_sandbox(files: HostFilesystem, environment: Mapping[str, str]) -> Sandbox:
    """Return the first sandbox that works; else the local one, for what comes with this package."""
    with suppress(SandboxUnavailableError):
        name = choose_sandbox().name
        if issubclass(ISOLATED[name], IsolatedSandbox):  # a container has another Python
            return create_sandbox(name, files, env=environment)
    return LocalSandbox(files, env=environment)


@dataclass(slots=True)
class _Story:
    """The steps of the demo, played in a workspace on disk."""

    files: HostFilesystem
    sandbox: Sandbox
    dump: Path
    view: View
    model: ScriptedAdapter
    _progress: Progress = field(default_factory=Progress)
    _session: Session = field(default_factory=lambda: Session(tags={"session_id": _NAME}))
    _messages: tuple[Message, ...] = ()
    _number: int = 0

    @property
    def _isolation(self) -> str | None:
        """The name of the sandbox, if it isolates commands."""
        found = (name for name, kind in ISOLATED.items() if isinstance(self.sandbox, kind))
        return next(found, None)

    def play(self) -> None:
        """Play all steps."""
        self._copy_project()
        self.dump.mkdir(0o700, parents=True, exist_ok=True)
        with (
            self._create_section() as workspace,
            SessionRecorder(self._session, self.dump / _TIMELINE, self.files),
        ):
            task = MarkdownSection[None](title="Task", template=ATTEMPT.request)
            prompt = Prompt[None](ns="wink", key="demo", name="demo", sections=[task, workspace])
            before = checkpoint(self._session, self.files, "before the agent")
            original_hash = tree_hash(self.files)
            answer = self._play_part(prompt, ATTEMPT)
            self._roll_back(answer, before, original_hash)
            self._play_part(prompt, SECOND_ATTEMPT)
            fixed_hash = tree_hash(self.files)
            self._play_part(prompt, ATTACKS)
            if self._isolation is not None:
                self._play_part(prompt, ESCAPES)
            _check_same("Rejected calls changed something", fixed_hash, tree_hash(self.files))
            self._compare(before)
            self._save(prompt, fixed_hash)

    def _create_section(self) -> FilesystemSection:
        handlers = shell_handlers(self.sandbox, on_output=self._progress.on_output)
        return FilesystemSection(
            filesystem=self.files, session=self._session, extra_handlers=handlers
        )

    def _show(self, title: str, lines: Iterable[str | Text], detail: str = "") -> None:
        """Show a heading, and lines below it."""
        self._number += 1
        number = f"\n{self._number:<{len(_MARGIN)}}"
        head = Text.assemble((number, "bold cyan"), (title, "bold"), (detail, "dim"))
        for each in lines:
            line = Text.assemble(_MARGIN, each)
            line.rstrip()
            head.append("\n").append_text(line)
        self.view.emit("text", {}, head)

    def _emit(
        self,
        name: str,
        titles: tuple[str, str],
        started: float,
        facts: Mapping[str, object],
        lines: Iterable[str | Text],
    ) -> None:
        """Emit a step that calls the library: its title and its call, what it found, and how."""
        seconds = time.perf_counter() - started
        title, call = titles
        self._show(title, lines, f"  {call}  {format_duration(seconds * 1000)}")
        timed = {"title": title, "call": call, "seconds": round(seconds, 4)}
        self.view.emit(name, {**timed, **facts})

    def _copy_project(self) -> None:
        started = time.perf_counter()
        mount = HostMount(".", exclude_glob=("*.pyc",))
        report = self.files.hydrate_from_host(mount, allowed_roots=[PROJECT])
        titles = (
            "A project with a bug is copied in",
            "files.hydrate_from_host(mount, allowed_roots=roots)",
        )
        facts = {"files": report.file_count, "bytes": report.total_bytes}
        size = f"{report.file_count} files, {report.total_bytes:,} bytes"
        isolation = {"isolation": self._isolation or NO_SANDBOX}
        self._emit("copy", titles, started, facts | isolation, (size, self._describe_isolation()))

    def _describe_isolation(self) -> str:
        if self._isolation is not None:
            return f"the agent's commands run isolated by {self._isolation}"
        return (
            "no sandbox with this Python works here, so the commands, which are part of this"
            f" demo,\n{_MARGIN}run on this machine without isolation; wink doctor says why"
        )

    def _play_part(self, prompt: Prompt[None], part: Part) -> str:
        """Let the model answer a request, as the view of a run shows it; return the answer."""
        turns: list[tuple[ModelResponded, list[ToolInvoked]]] = []
        titles = [each.title for each in part.turns]

        def begin(event: ModelResponded) -> None:
            if event.tool_calls and len(turns) < len(titles):
                request = () if turns else (Text(f"you: {part.request}", "italic"),)
                self._show(titles[len(turns)], request)
                turns.append((event, []))

        with ExitStack() as stack:
            stack.callback(self._session.bus.subscribe(ModelResponded, begin))
            end = self._session.bus.subscribe(ToolInvoked, lambda event: turns[-1][1].append(event))
            stack.callback(end)
            stack.enter_context(self.view.observe(self._session, self._progress))
            request = (UserMessage(part.request),) if self._messages else ()
            messages = (*self._messages, *request)
            response = self.model.evaluate(prompt, session=self._session, messages=messages)
        self._messages = response.messages
        if not self.view.shows_text:
            self.view.emit("text", {}, f"  {response.text}")
        if len(turns) < len(titles):
            raise StoryError(f"The run ended before step {part.turns[len(turns)].name!r}")
        for turn, (event, calls) in zip(part.turns, turns, strict=True):
            # calls that only read run at the same time, and end in any order
            self._check_turn(turn, event, sorted(calls, key=lambda each: each.call_id))
        return response.text

    def _check_turn(self, turn: Turn, event: ModelResponded, calls: Sequence[ToolInvoked]) -> None:
        """Emit a turn, whose calls must have ended as expected."""
        for call, expected in zip(calls, turn.outcomes, strict=True):
            if _find_outcome(call) != expected:
                text = f"{call.tool} {describe_target(call, _MAX_CALL)}"
                raise StoryError(f"Unexpected result: {text}: {result_text(call)!r}")
        targets = (f"{each.tool} {describe_target(each, _MAX_CALL)}" for each in calls)
        facts = {
            "title": turn.title,
            "call": "; ".join(targets),
            "seconds": round(sum(each.duration_ms for each in calls) / 1000, 4),
            "said": event.text,
            "exit_codes": [each.command.exit_code for each in calls if each.command is not None],
            "calls": [_describe_call(each) for each in calls],
        }
        self.view.emit(turn.name, facts)

    def _roll_back(self, answer: str, before: Snapshot, original_hash: str) -> None:
        broken_hash = tree_hash(self.files)
        started = time.perf_counter()
        rollback_to(self._session, before, self.files)
        titles = ("The mistake is rolled back", "rollback_to(session, before, files)")
        now = tree_hash(self.files)
        _check_same("The mistake was not rolled back", original_hash, now)
        if broken_hash == original_hash:
            raise StoryError("The mistake changed nothing")
        facts = {"said": answer, "before": original_hash, "broken": broken_hash, "now": now}
        lines = (
            f"tree before the agent   {original_hash[:_HASH_LENGTH]}",
            Text(f"tree after its mistake  {broken_hash[:_HASH_LENGTH]}", "red"),
            Text(f"tree now                {now[:_HASH_LENGTH]}  same", "green"),
        )
        self._emit("rollback", titles, started, facts, lines)

    def _compare(self, before: Snapshot) -> None:
        started = time.perf_counter()
        kept = get_filesystem_snapshot(before)
        if kept is None:
            raise StoryError("The checkpoint has no files")
        changes = diff(self.files.view(kept), self.files)
        patch = changes.patch(context=1)
        facts = {"patch": patch, "files": [each.path for each in changes.entries]}
        lines = [Text.from_ansi(each) for each in render_patch([patch.encode()])]
        titles = ("All changes", "diff(files.view(before), files).patch()")
        self._emit("diff", titles, started, facts, (*lines, str(changes.statistics)))

    def _save(self, prompt: Prompt[None], fixed_hash: str) -> None:
        started = time.perf_counter()
        path = dump_session_tree(self._session, self.dump, prompt.filesystem())
        if path is None:
            raise StoryError("Nothing was dumped")
        with InMemoryFilesystem() as memory:
            loaded = load_session(path, filesystem=memory)
            _check_same("The dump has different files", fixed_hash, tree_hash(memory))
        calls = len(loaded[ToolInvoked].all())
        names = [path.name, path.with_suffix(".fs.zip").name]
        sizes = [f"{name} ({(path.parent / name).stat().st_size:,} bytes)" for name in names]
        facts = {"directory": str(self.dump), "names": names, "tool_calls": calls}
        lines = (
            " and ".join(sizes),
            f"loaded into memory, with {calls} tool calls: tree {fixed_hash[:_HASH_LENGTH]}  same",
        )
        titles = ("The session is saved", "dump_session_tree(session, directory, files)")
        self._emit("dump", titles, started, {**facts, "tree": fixed_hash}, lines)


def _find_outcome(call: ToolInvoked) -> Outcome | None:
    if not call.success:
        return "rejected"
    return "done" if call.command is None else call.command.exit_code


def _describe_call(call: ToolInvoked) -> dict[str, object]:
    seconds = round(call.duration_ms / 1000, 4)
    facts = pick(call, "tool", "success", "paths")
    return {**facts, "arguments": call.params, "seconds": seconds, "answer": call.result_message}


def _check_same(problem: str, expected: str, actual: str) -> None:
    if expected != actual:
        raise StoryError(f"{problem}: tree {actual!r} instead of {expected!r}")


def tree_hash(files: Filesystem) -> str:
    """Return one SHA-256 of the tree: paths, kinds, permissions, contents, link targets."""
    entries: list[str] = []
    pending = ["."]
    while pending:
        for entry in files.list(pending.pop()):
            stat = files.stat(entry.path)
            content = stat.link_target or stat.content_hash
            entries.append(repr((entry.path, entry.kind, stat.permissions, content)))
            if entry.is_directory:
                pending.append(entry.path)
    return hashlib.sha256("\n".join(sorted(entries)).encode()).hexdigest()


# --- the end ---


def _print_footer(console: Console, seconds: float, keep: Path | None) -> None:
    note = "the temporary project and session were removed"
    if keep is not None:
        note = f"the fixed project is in {str(keep)!r}, its session in {str(keep / _SESSION)!r}"
    console.print(Text.assemble((f"\nDone in {seconds:.1f} s: ", "bold"), note))
    console.print("Try next:")
    for purpose, command in _suggest(keep):
        lead = f"{_MARGIN}{purpose:<{_COLUMN}}"
        if len(lead) + len(command) > console.width:
            console.print(Text(lead.rstrip(), "dim"))
            lead = f"{_MARGIN}  "
        # a command is never wrapped: it can be copied as it is
        console.print(Text.assemble((lead, "dim"), (command, "cyan")), soft_wrap=True)


def _suggest(keep: Path | None) -> Iterable[tuple[str, str]]:
    wink = shlex.quote(_find_program())
    if keep is None:
        names = ("wink-demo", *(f"wink-demo-{number}" for number in range(2, 100)))
        new = next((each for each in names if not os.path.lexists(each)), names[0])
        yield "keep the project and the session", f"{wink} demo --keep {new}"
    else:
        yield (
            "run the tests of the project",
            f"(cd {shlex.quote(str(keep))} && python3 -m unittest)",
        )
        yield "look at every step", f"{wink} log {shlex.quote(str(keep / _SESSION / _TIMELINE))}"
    yield "get ready for a real model", f"{wink} doctor"
    yield "see what a run can do", f"{wink} run -h"


def _find_program() -> str:
    """Return the name or path by which this program can be called from here."""
    program = Path(sys.argv[0]).absolute()
    found = shutil.which("wink")
    if program.name != "wink" or (found is not None and Path(found).absolute() == program):
        return "wink"
    here = Path.cwd()
    return str(program.relative_to(here) if program.is_relative_to(here) else program)


def render_svg(console: Console, title: str) -> str:
    """Return what a recording console has printed as an SVG image."""
    svg = console.export_svg(title=title)
    # an image must not fetch fonts from the network; monospace remains as the fallback
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    return "".join(line.rstrip() + "\n" for line in svg.splitlines() if line.strip())
