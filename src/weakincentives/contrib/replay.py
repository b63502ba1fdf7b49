"""Replay: run the tool calls of a recorded session again, with the tools of today.

The answers of the model come from the timeline, so a replay needs no model. Each prompt of the
recording starts with its files, session and conversation as they were then. The result of every
call, and the files after it, must be the recorded ones: a regression test for agents.

What cannot be the same is normalized on both sides before the comparison: paths of the
workspace and of temporary files, and in the output of commands also dates, times, durations and
memory addresses. Of permissions, only whether a file is executable is compared.
"""

import difflib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeAlias, cast

from weakincentives import adapters
from weakincentives.adapters import RunLimits, ToolCallRunner, load_messages
from weakincentives.contrib import evaluation
from weakincentives.contrib.tools import FilesystemSection, repo_map_handlers
from weakincentives.contrib.tools.context import Handler
from weakincentives.contrib.tools.dialects import DIALECTS, DialectName, shared
from weakincentives.contrib.tools.evaluation import EVALUATION_TOOL_SPECS, evaluation_handlers
from weakincentives.contrib.tools.shell import SHELL_TOOL_SPECS, ShellLimits, shell_handlers
from weakincentives.filesystem import (
    POSIX_LIMITS,
    ArchivableFilesystem,
    BaseFilesystem,
    HostFilesystem,
    InMemoryFilesystem,
    diff,
    export_state,
    is_cache,
)
from weakincentives.filesystem.base import is_tool_output
from weakincentives.history import EntryState
from weakincentives.prompt import Prompt, Tool, ToolContext
from weakincentives.runtime.session import Session
from weakincentives.runtime.timeline import SessionRecorder, StepRecord, Timeline
from weakincentives.sandbox import WORKSPACE, Sandbox, SandboxUnavailableError, create_sandbox

__all__ = ["PromptFactory", "ReplayDifference", "ReplayReport", "assert_replays", "replay"]

PromptFactory: TypeAlias = Callable[[BaseFilesystem, Session], Prompt[Any]]
"""Returns the prompt whose tools are replayed, for a workspace and a session."""
_SKIPPED = "skipped"
_NO_ROOT = "/"
_MAX_DIFF_LINES = 200
_EXECUTABLE = 0o100
_TEMPORARY = re.compile(r"/(?:tmp|var/tmp|dev/shm)/[^\s'\":,;)\]]+")
_VOLATILE = (
    (
        re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?"),
        "<date>",
    ),
    (re.compile(r"\b\d\d:\d\d:\d\d(?:\.\d+)?\b"), "<time>"),
    (re.compile(r"\b\d+(?:\.\d+)? ?(?:ms|s|secs?|seconds?|minutes?)\b"), "<duration>"),
    (re.compile(r"\b0x[0-9a-fA-F]{6,}\b"), "<address>"),
)


@dataclass(frozen=True, slots=True)
class ReplayDifference:
    """The first result that is not the recorded one.

    Args:
        step: The number of the step.
        title: What happened in it.
        what: Whether the text for the model differs, or the files.
        text: The difference, as a unified diff from recorded to replayed.
    """

    step: int
    title: str
    what: Literal["result", "files"]
    text: str

    def __str__(self) -> str:
        """Return the step, and the difference."""
        noun = "result is" if self.what == "result" else "files are"
        return f"Step {self.step}, {self.title}: the {noun} not the recorded one\n{self.text}"


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What a replay found.

    Args:
        path: The timeline.
        replayed: The steps that were run again.
        skipped: The steps that were not run, such as commands without a sandbox.
        difference: The first difference, at which the replay stopped; or None.
        problem: What is missing from the recording, so that it was not replayed; or None.
        interrupted: The skipped steps whose call was interrupted, so that it has no result.
    """

    path: Path
    replayed: tuple[int, ...]
    skipped: tuple[int, ...]
    difference: ReplayDifference | None
    problem: str | None = None
    interrupted: tuple[int, ...] = ()


def assert_replays(
    path: str | os.PathLike[str],
    *,
    create_prompt: PromptFactory | None = None,
    sandbox: str | None = None,
) -> None:
    """Replay a timeline in a test; arguments are those of `replay`.

    Raises:
        AssertionError: A result differs, the recording is cut off or damaged, or there was
            nothing to replay.
    """
    report = replay(path, create_prompt=create_prompt, sandbox=sandbox)
    if report.difference is not None:
        raise AssertionError(f"{os.fspath(path)}: {report.difference}")
    if report.problem is not None:
        raise AssertionError(f"{os.fspath(path)}: {report.problem}")
    if not report.replayed:
        raise AssertionError(f"{os.fspath(path)}: no step could be replayed")


def replay(
    path: str | os.PathLike[str],
    *,
    create_prompt: PromptFactory | None = None,
    sandbox: str | None = None,
) -> ReplayReport:
    """Run the tool calls of a timeline again, up to the first result that differs.

    Args:
        path: The timeline.
        create_prompt: Returns the prompt with your own tools; by default the filesystem tools
            in the dialect that was recorded, with commands if there is a sandbox.
        sandbox: Where recorded commands run again, a name for `create_sandbox`. By default the
            steps of commands are skipped.

    Raises:
        TimelineError: It is not a timeline.
        SandboxUnavailableError: The sandbox cannot be used here.
    """
    replayed: list[int] = []
    skipped: list[int] = []
    difference = problem = None
    with Timeline(path) as timeline:
        for step, found in _replay_calls(timeline, create_prompt, sandbox):
            (skipped if found is _SKIPPED else replayed).append(step.number)
            difference = found if isinstance(found, ReplayDifference) else None
        if difference is None:
            problem = timeline.problem or _find_end_problem(timeline)
        interrupted = tuple(each for each in skipped if _was_interrupted(timeline.step(each)))
    steps = tuple(replayed), tuple(skipped)
    return ReplayReport(Path(path), *steps, difference, problem, interrupted)


def _replay_calls(
    timeline: Timeline, create_prompt: PromptFactory | None, sandbox: str | None
) -> Iterator[tuple[StepRecord, ReplayDifference | Literal["skipped"] | None]]:
    """Yield each call with its difference, up to the first, or that it was skipped."""
    for prompt, calls in _segments(timeline):
        with _ReplayedWorkspace(timeline, prompt, create_prompt, sandbox) as workspace:
            for step in calls:
                if not workspace.can_run(step):
                    workspace.skip(step)
                    yield step, _SKIPPED
                    continue
                difference = workspace.run(step)
                yield step, difference
                if difference is not None:
                    return


def _find_end_problem(timeline: Timeline) -> str | None:
    """Return where a recording ends that was cut off before its last prompt was finished."""
    kinds = {step.kind: step.number for step in timeline.steps}  # the last of each
    if kinds.get("prompt", 0) <= max(kinds.get("end", 0), kinds.get("start", 0)):
        return None
    last = timeline.step(timeline.last)
    return f"The recording ends at step {last.number}, {last.title}, before the run did"


def _segments(timeline: Timeline) -> Iterator[tuple[StepRecord, list[StepRecord]]]:
    """Yield each prompt with the tool calls that follow it, on every branch."""
    prompt: StepRecord | None = None
    calls: list[StepRecord] = []
    for step in timeline.steps:
        if step.kind in ("prompt", "start"):
            if prompt is not None and calls:
                yield prompt, calls
            prompt, calls = step if step.kind == "prompt" else None, []
        elif step.kind == "tool" and not timeline.find_lost(step.number):
            calls.append(step)
    if prompt is not None and calls:
        yield prompt, calls


class _ReplayedWorkspace:
    """The files, the session and the tools of one prompt, in a temporary place."""

    def __init__(
        self,
        timeline: Timeline,
        start: StepRecord,
        create_prompt: PromptFactory | None,
        sandbox: str | None,
    ) -> None:
        self._timeline = timeline
        self._start = start
        self._create_prompt = create_prompt or self._default_prompt
        self._sandbox = sandbox
        self._stack = ExitStack()
        self._host: HostFilesystem | None = None
        self._offered = frozenset(map(str, start.details.get("tools") or ()))
        run: object = timeline.step(1).details.get("run")
        self._run: Mapping[str, Any] = {}
        if isinstance(run, Mapping):
            self._run = cast("Mapping[str, Any]", run)
        self._original = str(self._run.get("workspace") or "")

    def __enter__(self) -> "_ReplayedWorkspace":
        with ExitStack() as stack:
            self._place = Path(stack.enter_context(TemporaryDirectory(prefix="wink-replay-")))
            self._files = stack.enter_context(self._create_filesystem())
            self._set_files(self._start.number)
            session = self._timeline.session(self._start.number, unknown="data")
            self._stack = stack
            prompt = self._create_prompt(self._files, session)
            recording = self._place / "replay"
            stack.enter_context(SessionRecorder(session, recording, self._files, durable=False))
            self._recording = stack.enter_context(Timeline(recording))
            rendered = prompt.render()
            self._tools: dict[str, Tool[Any, Any]] = {each.name: each for each in rendered.tools}
            context = ToolContext(
                prompt, rendered, adapters.ScriptedAdapter([]), session, filesystem=self._files
            )
            self._runner = ToolCallRunner(
                rendered.tools,
                context=context,
                limits=RunLimits(adapters.CancellationToken()),
                options=adapters.RunOptions(),
            )
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def can_run(self, step: StepRecord) -> bool:
        """Return whether a step has a result, and its tool is here.

        A call of no tool at all is replayed too.
        """
        if _was_interrupted(step):
            return False
        name = str(step.details.get("tool"))
        return name in self._tools or (name not in self._offered and not step.success)

    def skip(self, step: StepRecord) -> None:
        """Continue with the recorded files."""
        self._set_files(step.number)
        self._recording.refresh()

    def run(self, step: StepRecord) -> ReplayDifference | None:
        """Run the call of a step; return how its result or the files differ."""
        call, expected = self._find_call(step)
        [outcome] = self._runner.run([call])
        is_command = call.name in self._tools and self._tools[call.name].bypasses_filesystem
        before = self._normalize(expected, self._timeline.header.root, is_command=is_command)
        after = self._normalize(outcome.text, self._files.root, is_command=is_command)
        if before != after:
            return ReplayDifference(step.number, step.title, "result", _unified(before, after))
        self._recording.refresh()
        text = self._compare_files(step)
        return None if text is None else ReplayDifference(step.number, step.title, "files", text)

    def _find_call(self, step: StepRecord) -> tuple[adapters.ToolCall, str]:
        """Return the call as the model sent it, and the text that it got."""
        details = step.details
        wanted = details.get("call_id")
        call = adapters.ToolCall(str(details["tool"]), details.get("params") or {}, str(wanted))
        text = str(details.get("result_message") or "")
        for message in load_messages(self._timeline.messages(step.number)):
            if isinstance(message, adapters.AssistantMessage):
                call = next((c for c in message.tool_calls if c.call_id == wanted), call)
            elif isinstance(message, adapters.ToolMessage) and message.call_id == wanted:
                text = message.text
        return call, text

    def _compare_files(self, step: StepRecord) -> str | None:
        last = self._recording.step(self._recording.last)
        paths = [
            path
            for path in sorted({*step.paths, *last.paths})
            if not (is_tool_output(path) or is_cache(path))
            and _facts(self._timeline.entry(step.number, path))
            != _facts(self._recording.entry(last.number, path))
        ]
        if not paths:
            return None
        changes = diff(
            self._timeline.files(step.number),
            self._recording.files(last.number),
            path=paths,
            renames=False,
        )
        return _cut(changes.patch().rstrip("\n").split("\n"))

    def _normalize(self, text: str, root: str, *, is_command: bool) -> str:
        paths = {root, os.path.realpath(root), self._original} - {"", _NO_ROOT}
        if is_command:
            paths.add(WORKSPACE)
        for path in sorted(paths, key=len, reverse=True):
            text = text.replace(path, "<workspace>")
        text = _TEMPORARY.sub("<temporary path>", text)
        for pattern, name in _VOLATILE if is_command else ():
            text = pattern.sub(name, text)
        return text

    def _create_filesystem(self) -> HostFilesystem | InMemoryFilesystem:
        """Return an empty workspace of the kind that was recorded: on disk, or in memory."""
        if self._timeline.header.root == _NO_ROOT:
            return InMemoryFilesystem()
        root = self._place / "workspace"
        root.mkdir()
        # a recording has all names that it could have
        self._host = HostFilesystem(root, git_dir=self._place / "history", limits=POSIX_LIMITS)
        return self._host

    def _set_files(self, number: int) -> None:
        archive = self._place / "step.fs.zip"
        export_state(self._timeline.files(number), archive)
        files: ArchivableFilesystem = self._files
        files.import_archive(archive)
        archive.unlink()

    def _default_prompt(self, files: BaseFilesystem, session: Session) -> Prompt[Any]:
        dialect = self._find_dialect()
        is_run = bool(self._run)  # of `wink run`, whose names and commands need not be ASCII
        extra_handlers: dict[type[Any], Handler] = {}
        if shared.REPO_MAP.name in self._offered:
            extra_handlers |= repo_map_handlers()
        sandbox = self._create_sandbox(dialect)
        if sandbox is not None:
            limits = ShellLimits(ascii_commands=not is_run)
            extra_handlers |= shell_handlers(sandbox, limits=limits)
        engine = self._create_engine(dialect)
        if engine is not None:
            extra_handlers |= evaluation_handlers(engine)
        section = FilesystemSection(
            filesystem=files,
            session=session,
            dialect=dialect,
            ascii_paths=not is_run,
            extra_handlers=extra_handlers,
        )
        self._stack.callback(section.close)
        return Prompt[Any](ns="wink", key="replay", name="replay", sections=[section])

    def _create_sandbox(self, dialect: DialectName) -> Sandbox | None:
        """Return where commands run again; None if there are none, or they are skipped."""
        commands = {each.name for each in SHELL_TOOL_SPECS[dialect]}
        if self._sandbox is None or not commands & self._offered:
            return None
        if self._host is None:
            raise SandboxUnavailableError("Commands need a workspace on disk")
        made = create_sandbox(self._sandbox, self._host, original=self._original or None)
        return self._stack.enter_context(made)

    def _create_engine(self, dialect: DialectName) -> evaluation.Engine | None:
        """Return what evaluates code again, the recorded engine if it is known."""
        tools = {each.name for each in EVALUATION_TOOL_SPECS[dialect]}
        if not tools & self._offered:
            return None
        named = self._run.get("evaluate")
        name = str(named) if named in evaluation.ENGINES else evaluation.DEFAULT_ENGINE
        if evaluation.find_problem(name) is not None:
            return None
        engine = evaluation.create_engine(name)
        self._stack.callback(engine.close)
        return engine

    def _find_dialect(self) -> DialectName:
        """Return the recorded dialect, or else the one that has most of the recorded tools."""
        named = self._run.get("dialect")
        return max(
            DIALECTS,
            key=lambda name: (
                name == named,
                sum(each.name in self._offered for each in DIALECTS[name]),
            ),
        )


def _was_interrupted(step: StepRecord) -> bool:
    """Return whether a call ended without a result: it was cancelled, or a limit stopped it."""
    details = step.details
    return not step.success and bool(details.get("error")) and details.get("result_size") is None


def _facts(entry: EntryState) -> object:
    """Return what must be the same about an entry of a timeline."""
    return entry.kind, entry.blob, entry.target, entry.mode & _EXECUTABLE


def _unified(before: str, after: str) -> str:
    lines = difflib.unified_diff(
        before.split("\n"), after.split("\n"), "recorded", "replayed", lineterm=""
    )
    return _cut(list(lines))


def _cut(lines: Sequence[str]) -> str:
    more = len(lines) - _MAX_DIFF_LINES
    return "\n".join(lines[:_MAX_DIFF_LINES]) + (f"\n[{more} more lines]" if more > 0 else "")
