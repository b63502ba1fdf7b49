"""`wink demo`: watch an agent fix a bug in a small project.

A scripted model runs in the real agent loop on a real project, without a key or a network.
The story copies the project, lets the agent fail, rolls its mistake back, lets it succeed,
and dumps the session.
"""

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import click

from weakincentives.adapters import (
    CancellationToken,
    Message,
    PromptResponse,
    ScriptedAdapter,
    UserMessage,
)
from weakincentives.cli.config import NO_SANDBOX
from weakincentives.cli.demo.script import (
    ATTACKS,
    ATTEMPT,
    ESCAPES,
    PYTHON,
    SCRIPT,
    SECOND_ATTEMPT,
    Part,
    ScriptedCall,
    Turn,
)
from weakincentives.cli.demo.view import (
    RECORDING,
    SESSION,
    Line,
    Step,
    StoryError,
    Style,
    diff_lines,
    line,
    show,
    speech,
)
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
from weakincentives.runtime.timeline import SessionRecorder
from weakincentives.sandbox import (
    ISOLATED,
    LocalSandbox,
    Sandbox,
    SandboxUnavailableError,
    choose_sandbox,
    create_sandbox,
)
from weakincentives.sandbox.host import IsolatedSandbox


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
    with _play(keep) as (steps, dump):
        try:
            if as_json:
                _print_json(steps)
            else:
                show(steps, keep=keep, svg=svg)
        except StoryError as error:
            raise click.ClickException(f"{error}; please report it") from error
        if debug is not None:
            ctx.invoke(debug, run=str(dump / RECORDING), as_json=as_json)


def _find_command(ctx: click.Context, name: str) -> click.Command | None:
    """Return another command, which needs an extra: it is imported only now."""
    group = ctx.find_root().command
    assert isinstance(group, click.Group)
    return group.get_command(ctx, name)


@contextmanager
def _play(keep: Path | None) -> Generator[tuple[Iterator[Step], Path], None, None]:
    """Yield the steps of the story and the directory of its dump.

    Its files are removed afterwards unless `keep` is given.
    """
    if keep is not None:
        _check_empty(keep)
    with TemporaryDirectory(prefix="wink-demo-") as directory:
        root = Path(directory)
        project = root / "project"
        project.mkdir()
        dump = (keep or root) / SESSION
        with play_story(project, store=root / "store", dump=dump) as steps:
            yield steps, dump
        if keep is not None:
            shutil.copytree(project, keep, symlinks=True, dirs_exist_ok=True)


def _check_empty(keep: Path) -> None:
    keep.mkdir(parents=True, exist_ok=True)
    if any(keep.iterdir()):
        raise click.UsageError(
            f"--keep needs a new or empty directory, not {str(keep)!r}; name another"
        )


def _print_json(steps: Iterator[Step]) -> None:
    for step in steps:
        data = {
            "step": step.name,
            "title": step.title,
            "call": step.call,
            "seconds": round(step.seconds, 4),
            **step.facts,
        }
        click.echo(json.dumps(data))


Calls: TypeAlias = tuple[ToolInvoked, ...]
_Events: TypeAlias = "SimpleQueue[ToolInvoked | None]"


class Agent:
    """A scripted model in the real loop; each part continues the conversation."""

    def __init__(self, prompt: Prompt[Any], session: Session) -> None:
        """Replay the script with a prompt."""
        self._prompt = prompt
        self._session = session
        self._model = ScriptedAdapter(SCRIPT)
        self._messages: tuple[Message, ...] = ()

    def work(self, part: Part) -> Generator[tuple[Turn, Calls], None, str]:
        """Yield each turn with its finished calls as soon as they end; return the answer.

        Raises:
            StoryError: A call did not run.
            WinkError: The run failed.
        """
        messages = (*self._messages, UserMessage(part.request)) if self._messages else ()
        with self._evaluate(messages) as (running, events):
            for turn in part.turns:
                yield turn, _wait_for_calls(turn, events, running)
            response = running.result()
        self._messages = response.messages
        return response.text

    @contextmanager
    def _evaluate(
        self, messages: tuple[Message, ...]
    ) -> Generator[tuple[Future[PromptResponse[Any]], _Events], None, None]:
        """Run the loop in a thread while its turns are shown; cancel it when the block ends."""
        events: _Events = SimpleQueue()
        cancellation = CancellationToken()
        unsubscribe = self._session.bus.subscribe(ToolInvoked, events.put)
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(
                self._model.evaluate,
                self._prompt,
                session=self._session,
                messages=messages,
                cancellation=cancellation,
            )
            running.add_done_callback(lambda _: events.put(None))
            try:
                yield running, events
            finally:
                cancellation.cancel()
                unsubscribe()


def _wait_for_calls(turn: Turn, events: _Events, running: Future[PromptResponse[Any]]) -> Calls:
    """Wait for the calls of a turn; read-only calls may end in any order."""
    ended: dict[str, ToolInvoked] = {}
    wanted = [call.call_id for call in turn.completion().tool_calls]
    while len(ended) < len(wanted):
        event = events.get()
        if event is None:
            running.result()
            raise StoryError(f"The run ended before step {turn.name!r}")
        ended[event.call_id] = event
    return tuple(ended[each] for each in wanted)


PROJECT = Path(__file__).parent / "project"
_NAME = "demo"  # of the files of its dump
_EXIT_CODE = re.compile(r"exit code (\d+)")
_HASH_LENGTH = 16


@contextmanager
def play_story(
    project: Path, *, store: Path, dump: Path
) -> Generator[Generator[Step, None, None], None, None]:
    """Yield the steps of the story; its processes have ended when the block ends.

    Args:
        project: The workspace of the agent, an empty directory.
        store: The directory for snapshots.
        dump: The directory for the session dump.
    """
    environment = {
        "PATH": os.pathsep.join((str(PYTHON.parent), *os.get_exec_path())),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    with (
        HostFilesystem(project, git_dir=store) as files,
        _create_sandbox(files, environment) as sandbox,
        closing(Story(files, sandbox, dump).steps()) as steps,
    ):
        yield steps


def _create_sandbox(files: HostFilesystem, environment: Mapping[str, str]) -> Sandbox:
    """Return the first sandbox that works; else the local one, for what comes with this package."""
    with suppress(SandboxUnavailableError):
        name = choose_sandbox().name
        if issubclass(ISOLATED[name], IsolatedSandbox):  # a container has another Python
            return create_sandbox(name, files, env=environment)
    return LocalSandbox(files, env=environment)


class Story:
    """The steps of the demo, played in a workspace on disk."""

    def __init__(self, files: HostFilesystem, sandbox: Sandbox, dump: Path) -> None:
        """Play in an empty workspace and dump the session to `dump`."""
        self._files = files
        self._sandbox = sandbox
        self._isolation = _find_isolation(sandbox)
        self._dump = dump
        self._session = Session(tags={"session_id": _NAME})

    def steps(self) -> Generator[Step, None, None]:
        """Play the story, one step at a time.

        Raises:
            StoryError: A step did not end as the script expects.
        """
        yield self._copy_project()
        self._dump.mkdir(0o700, parents=True, exist_ok=True)
        recording = self._dump / RECORDING
        with (
            self._create_section() as workspace,
            SessionRecorder(self._session, recording, self._files),
        ):
            task = MarkdownSection[None](title="Task", template=ATTEMPT.request)
            prompt = Prompt[None](ns="wink", key="demo", name="demo", sections=[task, workspace])
            agent = Agent(prompt, self._session)
            before = checkpoint(self._session, self._files, "before the agent")
            original_hash = tree_hash(self._files)
            answer = yield from _play_part(agent, ATTEMPT)
            yield self._roll_back(answer, before, original_hash)
            yield from _play_part(agent, SECOND_ATTEMPT)
            fixed_hash = tree_hash(self._files)
            yield from _play_part(agent, ATTACKS)
            if self._isolation is not None:
                yield from _play_part(agent, ESCAPES)
            _check_same("Rejected calls changed something", fixed_hash, tree_hash(self._files))
            yield self._compare(before)
            yield self._save(prompt, fixed_hash)

    def _copy_project(self) -> Step:
        started = time.perf_counter()
        mount = HostMount(".", exclude_glob=("*.pyc",))
        report = self._files.hydrate_from_host(mount, allowed_roots=[PROJECT])
        size = f"{report.file_count} files, {report.total_bytes:,} bytes"
        return Step(
            "copy",
            "A project with a bug is copied in",
            "files.hydrate_from_host(mount, allowed_roots=roots)",
            time.perf_counter() - started,
            (line(size), line(self._describe_isolation())),
            {
                "files": report.file_count,
                "bytes": report.total_bytes,
                "isolation": self._isolation or NO_SANDBOX,
            },
            is_ours=True,
        )

    def _describe_isolation(self) -> str:
        if self._isolation is not None:
            return f"the agent's commands run isolated by {self._isolation}"
        return (
            "no sandbox with this Python works here, so the commands, which are part of this"
            " demo, run on this machine without isolation; wink doctor says why"
        )

    def _create_section(self) -> FilesystemSection:
        return FilesystemSection(
            filesystem=self._files,
            session=self._session,
            extra_handlers=shell_handlers(self._sandbox),
        )

    def _roll_back(self, answer: str, before: Snapshot, original_hash: str) -> Step:
        broken_hash = tree_hash(self._files)
        started = time.perf_counter()
        rollback_to(self._session, before, self._files)
        seconds = time.perf_counter() - started
        now = tree_hash(self._files)
        _check_same("The mistake was not rolled back", original_hash, now)
        if broken_hash == original_hash:
            raise StoryError("The mistake changed nothing")
        return Step(
            "rollback",
            "The mistake is rolled back",
            "rollback_to(session, before, files)",
            seconds,
            (
                speech("agent", answer),
                Line((("tree before the agent   ", "quiet"), (_short(original_hash), "plain"))),
                Line((("tree after its mistake  ", "quiet"), (_short(broken_hash), "bad"))),
                Line(
                    (
                        ("tree now                ", "quiet"),
                        (_short(now), "good"),
                        ("  same", "good"),
                    )
                ),
            ),
            {"said": answer, "before": original_hash, "broken": broken_hash, "now": now},
            is_ours=True,
        )

    def _compare(self, before: Snapshot) -> Step:
        started = time.perf_counter()
        kept = get_filesystem_snapshot(before)
        if kept is None:
            raise StoryError("The checkpoint has no files")
        changes = diff(self._files.view(kept), self._files)
        patch = changes.patch(context=1)
        return Step(
            "diff",
            "All changes",
            "diff(files.view(before), files).patch()",
            time.perf_counter() - started,
            (*diff_lines(patch.splitlines()), line(str(changes.statistics), "quiet")),
            {"patch": patch, "files": [each.path for each in changes.entries]},
            is_ours=True,
        )

    def _save(self, prompt: Prompt[None], fixed_hash: str) -> Step:
        started = time.perf_counter()
        path = dump_session_tree(self._session, self._dump, prompt.filesystem())
        if path is None:
            raise StoryError("Nothing was dumped")
        with InMemoryFilesystem() as memory:
            loaded = load_session(path, filesystem=memory)
            _check_same("The dump has different files", fixed_hash, tree_hash(memory))
        seconds = time.perf_counter() - started
        calls = len(loaded[ToolInvoked].all())
        names = [path.name, path.with_suffix(".fs.zip").name]
        sizes = [f"{name} ({(path.parent / name).stat().st_size:,} bytes)" for name in names]
        return Step(
            "dump",
            "The session is saved",
            "dump_session_tree(session, directory, files)",
            seconds,
            (
                line(" and ".join(sizes)),
                Line(
                    (
                        (f"loaded into memory, with {calls} tool calls: tree ", "quiet"),
                        (_short(fixed_hash), "plain"),
                        ("  same", "good"),
                    )
                ),
            ),
            {"directory": str(self._dump), "names": names, "tool_calls": calls, "tree": fixed_hash},
            is_ours=True,
        )


def _find_isolation(sandbox: Sandbox) -> str | None:
    """Return the name of a sandbox that isolates commands."""
    return next((name for name, kind in ISOLATED.items() if isinstance(sandbox, kind)), None)


def _play_part(agent: Agent, part: Part) -> Generator[Step, None, str]:
    """Yield the turns of a part as steps, and return the answer."""
    request: tuple[Line, ...] = (speech("you", part.request),)
    with closing(agent.work(part)) as work:
        try:
            while True:
                step = _create_step(*next(work))
                yield replace(step, lines=request + step.lines)
                request = ()
        except StopIteration as end:
            return end.value


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


def _create_step(turn: Turn, calls: Calls) -> Step:
    pairs = list(zip(turn.calls, calls, strict=True))
    codes = [_check_call(scripted, call) for scripted, call in pairs]
    lines = [each for scripted, call in pairs for each in _call_lines(scripted, call)]
    words = (speech("agent", turn.text),) if turn.text else ()
    return Step(
        turn.name,
        turn.title,
        "; ".join(map(str, turn.calls)),
        sum(each.duration_ms for each in calls) / 1000,
        (*words, *lines),
        {
            "said": turn.text,
            "exit_codes": [each for each in codes if each is not None],
            "calls": [_describe_call(each) for each in calls],
        },
    )


def _check_call(scripted: ScriptedCall, call: ToolInvoked) -> int | None:
    """Return the exit code of a command; raise if the call did not end as scripted."""
    match = _EXIT_CODE.match(call.result_message)
    code = None if match is None else int(match[1])
    if (call.success, code) != (not scripted.is_rejected, scripted.exit_code):
        raise StoryError(f"Unexpected result: {scripted}: {call.result_message!r}")
    return code


def _describe_call(call: ToolInvoked) -> dict[str, object]:
    return {
        "tool": call.tool,
        "arguments": call.params,
        "success": call.success,
        "seconds": round(call.duration_ms / 1000, 4),
        "paths": list(call.paths),
        "answer": call.result_message,
    }


def _call_lines(scripted: ScriptedCall, call: ToolInvoked) -> Iterator[Line]:
    yield Line(((str(scripted), "call"),), lead="> ")
    verdict = "" if call.success else "rejected: "
    for text in scripted.excerpt(call.result_message.splitlines()):
        yield Line(((verdict, "bad"), (text, _result_style(text))), lead="  ")
        verdict = ""
    if call.success and call.tool == "shell_execute" and call.paths:
        yield Line((("changed: ", "quiet"), (", ".join(call.paths), "plain")), lead="  ")


def _result_style(text: str) -> Style:
    if text.startswith(("FAILED", "exit code 124")):
        return "bad"
    return "good" if text == "OK" else "plain"


def _short(digest: str) -> str:
    return digest[:_HASH_LENGTH]


def _check_same(problem: str, expected: str, actual: str) -> None:
    if expected != actual:
        raise StoryError(f"{problem}: tree {actual!r} instead of {expected!r}")
