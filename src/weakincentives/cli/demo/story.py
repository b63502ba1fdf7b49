"""The agent of `wink demo`: a scripted model in the real loop, watched turn by turn."""

import hashlib
import os
import re
import time
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeAlias

from weakincentives.adapters import (
    CancellationToken,
    Message,
    PromptResponse,
    ScriptedAdapter,
    UserMessage,
)
from weakincentives.cli.demo.script import (
    ATTEMPT,
    MISCHIEF,
    PYTHON,
    SCRIPT,
    SECOND_ATTEMPT,
    Act,
    Part,
    Turn,
)
from weakincentives.cli.demo.view import Line, Look, Step, StoryError, diff_lines, line, said
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
from weakincentives.runtime import ToolInvoked, checkpoint, files_of, rollback_to
from weakincentives.runtime.session import Session, Snapshot, dump_session_tree, load_session
from weakincentives.sandbox import LocalSandbox

Calls: TypeAlias = tuple[ToolInvoked, ...]
_Told: TypeAlias = "SimpleQueue[ToolInvoked | None]"


class Agent:
    """Works on one task in a session; each part goes on with the conversation."""

    def __init__(self, prompt: Prompt[Any], session: Session) -> None:
        """Play the script on a prompt."""
        self._prompt = prompt
        self._session = session
        self._model = ScriptedAdapter(SCRIPT)
        self._said: tuple[Message, ...] = ()

    def work(self, part: Part) -> Generator[tuple[Turn, Calls], None, str]:
        """Yield each turn with what came of its calls as soon as they are over; return the answer.

        Raises:
            StoryError: A call did not run.
            WinkError: The run failed.
        """
        messages = (*self._said, UserMessage(part.asked)) if self._said else ()
        with self._running(messages) as (running, told):
            for turn in part.turns:
                yield turn, _calls_of(turn, told, running)
            response = running.result()
        self._said = response.messages
        return response.text

    @contextmanager
    def _running(
        self, messages: tuple[Message, ...]
    ) -> Generator[tuple[Future[PromptResponse[Any]], _Told], None, None]:
        """Run in another thread, as turns are shown meanwhile; end it when nobody looks."""
        told: _Told = SimpleQueue()
        cancellation = CancellationToken()
        stop = self._session.bus.subscribe(ToolInvoked, told.put)
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(
                self._model.evaluate,
                self._prompt,
                session=self._session,
                messages=messages,
                cancellation=cancellation,
            )
            running.add_done_callback(lambda _: told.put(None))
            try:
                yield running, told
            finally:
                cancellation.cancel()
                stop()


def _calls_of(turn: Turn, told: _Told, running: Future[PromptResponse[Any]]) -> Calls:
    """Wait for the calls of a turn; those that only read may end in any order."""
    ended: dict[str, ToolInvoked] = {}
    wanted = [call.call_id for call in turn.completion().tool_calls]
    while len(ended) < len(wanted):
        event = told.get()
        if event is None:
            running.result()
            raise StoryError(f"The run ended before its step {turn.name!r}")
        ended[event.call_id] = event
    return tuple(ended[each] for each in wanted)


PROJECT = Path(__file__).parent / "project"
_EXIT_CODE = re.compile(r"exit code (\d+)")
_SHORT_HASH = 16


@contextmanager
def told_steps(
    project: Path, *, store: Path, dump: Path
) -> Generator[Generator[Step, None, None], None, None]:
    """Give the steps of the story; what it runs has ended when the block ends.

    Args:
        project: Where the agent works: a directory that is empty.
        store: Where snapshots go.
        dump: Where the session is dumped.
    """
    environment = {
        "PATH": os.pathsep.join((str(PYTHON.parent), *os.get_exec_path())),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    with (
        HostFilesystem(project, git_dir=store) as files,
        LocalSandbox(files, env=environment) as sandbox,
        closing(Story(files, sandbox, dump).steps()) as steps,
    ):
        yield steps


class Story:
    """The steps, played in a workspace on the disk."""

    def __init__(self, files: HostFilesystem, sandbox: LocalSandbox, dump: Path) -> None:
        """Play in a workspace that is empty; the session is dumped to `dump`."""
        self._files = files
        self._sandbox = sandbox
        self._dump = dump
        self._session = Session(tags={"session_id": "demo"})

    def steps(self) -> Generator[Step, None, None]:
        """Play the story, one step at a time.

        Raises:
            StoryError: Something came out differently from what is told.
        """
        yield self._copy_in()
        with self._workspace() as workspace:
            task = MarkdownSection[None](title="Task", template=ATTEMPT.asked)
            prompt = Prompt[None](ns="wink", key="demo", name="demo", sections=[task, workspace])
            agent = Agent(prompt, self._session)
            before = checkpoint(self._session, self._files, "before the agent")
            untouched = tree_hash(self._files)
            answer = yield from _played(agent, ATTEMPT)
            yield self._take_back(answer, before, untouched)
            yield from _played(agent, SECOND_ATTEMPT)
            repaired = tree_hash(self._files)
            yield from _played(agent, MISCHIEF)
            _check_same("Refused calls have changed something", repaired, tree_hash(self._files))
            yield self._difference(before)
            yield self._save(prompt, repaired)

    def _copy_in(self) -> Step:
        started = time.perf_counter()
        mount = HostMount(".", exclude_glob=("*.pyc",))
        report = self._files.hydrate_from_host(mount, allowed_roots=[PROJECT])
        size = f"{report.file_count} files, {report.total_bytes:,} bytes"
        return Step(
            "copy",
            "A project with a bug is copied",
            "files.hydrate_from_host(mount, allowed_roots=roots)",
            time.perf_counter() - started,
            (line(size),),
            {"files": report.file_count, "bytes": report.total_bytes},
            is_ours=True,
        )

    def _workspace(self) -> FilesystemSection:
        return FilesystemSection(
            filesystem=self._files,
            session=self._session,
            extra_handlers=shell_handlers(self._sandbox),
        )

    def _take_back(self, answer: str, before: Snapshot, untouched: str) -> Step:
        broken = tree_hash(self._files)
        started = time.perf_counter()
        rollback_to(self._session, before, self._files)
        seconds = time.perf_counter() - started
        now = tree_hash(self._files)
        _check_same("The mistake was not taken back", untouched, now)
        if broken == untouched:
            raise StoryError("The mistake changed nothing")
        return Step(
            "rollback",
            "The mistake is taken back",
            "rollback_to(session, before, files)",
            seconds,
            (
                said("agent", answer),
                Line((("tree before the agent   ", "quiet"), (_cut(untouched), "plain"))),
                Line((("tree after its mistake  ", "quiet"), (_cut(broken), "bad"))),
                Line(
                    (("tree now                ", "quiet"), (_cut(now), "good"), ("  same", "good"))
                ),
            ),
            {"said": answer, "before": untouched, "broken": broken, "now": now},
            is_ours=True,
        )

    def _difference(self, before: Snapshot) -> Step:
        started = time.perf_counter()
        kept = files_of(before)
        if kept is None:
            raise StoryError("The checkpoint has no files")
        changes = diff(self._files.view(kept), self._files)
        patch = changes.patch(context=1)
        return Step(
            "diff",
            "What changed in all",
            "diff(files.view(before), files).patch()",
            time.perf_counter() - started,
            (*diff_lines(patch.splitlines()), line(str(changes.statistics), "quiet")),
            {"patch": patch, "files": [each.path for each in changes.entries]},
            is_ours=True,
        )

    def _save(self, prompt: Prompt[None], repaired: str) -> Step:
        started = time.perf_counter()
        path = dump_session_tree(self._session, self._dump, prompt.filesystem())
        if path is None:
            raise StoryError("There was nothing to dump")
        with InMemoryFilesystem() as memory:
            loaded = load_session(path, filesystem=memory)
            _check_same("The dump holds other files", repaired, tree_hash(memory))
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
                        (_cut(repaired), "plain"),
                        ("  same", "good"),
                    )
                ),
            ),
            {"directory": str(self._dump), "names": names, "tool_calls": calls, "tree": repaired},
            is_ours=True,
        )


def _played(agent: Agent, part: Part) -> Generator[Step, None, str]:
    """Yield the turns of a part as steps, and return the answer."""
    asked: tuple[Line, ...] = (said("you", part.asked),)
    with closing(agent.work(part)) as work:
        try:
            while True:
                step = _step(*next(work))
                yield replace(step, lines=asked + step.lines)
                asked = ()
        except StopIteration as end:
            return end.value


def tree_hash(files: Filesystem) -> str:
    """Return one SHA-256 over everything: paths, kinds, permissions, bytes, targets of links."""
    found: list[str] = []
    pending = ["."]
    while pending:
        for entry in files.list(pending.pop()):
            stat = files.stat(entry.path)
            content = stat.link_target or stat.content_hash
            found.append(repr((entry.path, entry.kind, stat.permissions, content)))
            if entry.is_directory:
                pending.append(entry.path)
    return hashlib.sha256("\n".join(sorted(found)).encode()).hexdigest()


def _step(turn: Turn, calls: Calls) -> Step:
    done = list(zip(turn.acts, calls, strict=True))
    codes = [_checked(act, call) for act, call in done]
    lines = [each for act, call in done for each in _told(act, call)]
    words = (said("agent", turn.says),) if turn.says else ()
    return Step(
        turn.name,
        turn.title,
        "; ".join(map(str, turn.acts)),
        sum(each.duration_ms for each in calls) / 1000,
        (*words, *lines),
        {
            "said": turn.says,
            "exit_codes": [each for each in codes if each is not None],
            "calls": [_facts(each) for each in calls],
        },
    )


def _checked(act: Act, call: ToolInvoked) -> int | None:
    """Return the exit code of a command, if the call ended as the story tells."""
    found = _EXIT_CODE.match(call.result_message)
    code = None if found is None else int(found[1])
    if (call.success, code) != (not act.is_refused, act.exit_code):
        raise StoryError(f"A call came out differently: {act}: {call.result_message!r}")
    return code


def _facts(call: ToolInvoked) -> dict[str, object]:
    return {
        "tool": call.tool,
        "arguments": call.params,
        "success": call.success,
        "seconds": round(call.duration_ms / 1000, 4),
        "paths": list(call.paths),
        "answer": call.result_message,
    }


def _told(act: Act, call: ToolInvoked) -> Iterator[Line]:
    yield Line(((str(act), "call"),), lead="> ")
    verdict = "" if call.success else "refused: "
    for text in act.excerpt(call.result_message.splitlines()):
        yield Line(((verdict, "bad"), (text, _look(text))), lead="  ")
        verdict = ""
    if call.success and call.tool == "shell_execute" and call.paths:
        yield Line((("changed: ", "quiet"), (", ".join(call.paths), "plain")), lead="  ")


def _look(text: str) -> Look:
    if text.startswith("FAILED") or "timed out" in text:
        return "bad"
    return "good" if text == "OK" else "plain"


def _cut(digest: str) -> str:
    return digest[:_SHORT_HASH]


def _check_same(fault: str, wanted: str, found: str) -> None:
    if wanted != found:
        raise StoryError(f"{fault}: tree {found!r} instead of {wanted!r}")
