"""The executor: one call, one transaction, one event."""

from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.adapters.bench import TOOLS, Bench, Many, Note, Write, files, write_many
from weakincentives.adapters import (
    CancellationToken,
    CheckedCall,
    FileSeen,
    Policy,
    ToolCall,
    ToolExecutor,
    ToolOutcome,
)
from weakincentives.filesystem import (
    BaseFilesystem,
    Diff,
    Filesystem,
    FilesystemSnapshot,
    FileWritten,
    HostFilesystem,
    InMemoryFilesystem,
)
from weakincentives.filesystem.host import SnapshotFilesystem
from weakincentives.filesystem.testing import MockFilesystem
from weakincentives.posix import cancellable
from weakincentives.prompt import (
    MarkdownSection,
    Prompt,
    PromptError,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.runtime import (
    Budget,
    BudgetExceededError,
    BudgetTracker,
    Deadline,
    DeadlineExceededError,
    ManualClock,
    ToolInvoked,
    current_transaction,
)
from weakincentives.runtime.session import Session


def test_a_call_is_parsed_run_and_recorded(bench: Bench):
    result = bench.call("write_file", file_path="./a//b.txt", content="hello")
    assert result == ToolResult("wrote ./a//b.txt")
    invoked = bench.invoked
    assert (invoked.tool, invoked.call_id, invoked.success) == ("write_file", "call-1", True)
    assert invoked.params == {"file_path": "./a//b.txt", "content": "hello"}
    assert invoked.paths == ("a/b.txt",)
    assert (invoked.mode, invoked.result_size) == ("overwrite", len("wrote ./a//b.txt"))
    assert invoked.session_id == bench.session.session_id
    assert invoked.duration_ms >= 0


def test_a_read_names_the_path_that_it_was_about(bench: Bench):
    bench.fs.write("a", "hello")
    assert bench.call("read_file", file_path="/a").value == "hello"
    assert bench.invoked.paths == ("a",)


def test_events_of_the_files_come_before_the_record_of_the_call(bench: Bench):
    order: list[str] = []
    bench.session.bus.subscribe(FileWritten, lambda _: order.append("file"))
    bench.session.bus.subscribe(ToolInvoked, lambda _: order.append("call"))
    bench.call("write_file", file_path="a")
    assert order == ["file", "call"]


def test_a_call_that_is_cancelled_while_it_runs_is_rolled_back(bench: Bench):
    cancellation = CancellationToken()

    def write(params: Note, *, context: ToolContext) -> ToolResult[None]:
        del params
        assert context.filesystem is not None
        context.filesystem.write("a", "half")
        cancellation.cancel()
        return ToolResult("done")

    tool = Tool[Note, None]("write", "Write a file.", write)
    context = ToolContext(None, None, None, bench.session, filesystem=bench.fs)
    with cancellable(cancellation):
        outcome = ToolExecutor([tool], context=context).execute(
            ToolCall("write", {"text": "x"}, "1")
        )
    assert not outcome.result.success
    assert "cancelled" in outcome.text
    assert not bench.fs.exists("a")


class DenyChanges(Policy):
    """Denies every change when it is reviewed."""

    def review(self, call: CheckedCall, changed: Sequence[str], diff: Diff | None) -> str | None:
        del call, diff
        return f"no: {', '.join(changed)}" if changed else None


@pytest.mark.parametrize("policies", [(), (DenyChanges(),)])
def test_a_tool_that_is_atomic_itself_needs_no_savepoint_unless_policies_review_it(
    tmp_path: Path, policies: tuple[Policy, ...]
) -> None:
    cancellation = CancellationToken()
    has_savepoint: list[bool] = []

    def restore(params: Write, *, context: ToolContext) -> ToolResult[None]:
        transaction = current_transaction()
        has_savepoint.append(transaction is not None and transaction.covers(files(context)))
        files(context).write(params.file_path, params.content)
        if not policies:
            cancellation.cancel()
        return ToolResult("done")

    with HostFilesystem(tmp_path) as fs:
        tool = Tool[Write, None]("restore", "Restore.", restore, atomic=True)
        session = Session()
        context = ToolContext(None, None, None, session, filesystem=fs)
        executor = ToolExecutor([tool], context=context, policies=policies)
        with cancellable(cancellation):
            outcome = executor.execute(ToolCall("restore", {"file_path": "a", "content": "1"}))
        assert has_savepoint == [bool(policies)]
        assert outcome.result.success is not bool(policies)
        assert fs.exists("a") is not bool(policies)
        invoked = session[ToolInvoked].latest()
        assert invoked is not None
        assert invoked.paths == ("a",)


@pytest.mark.parametrize(
    ("fail", "message"), [("result", "is a failure"), ("validation", "too late to say no")]
)
def test_a_failure_leaves_no_trace_but_its_record(bench: Bench, fail: str, message: str):
    bench.fs.write("a", "before")
    before = bench.state()
    result = bench.call("write_many", paths=["a", "b/c", "d"], fail=fail)
    assert not result.success
    assert message in result.message
    assert bench.state() == before
    assert not bench.fs.exists("b")
    assert not bench.invoked.success


@pytest.mark.parametrize(
    ("fail", "error"), [("bug", RuntimeError), ("interrupt", KeyboardInterrupt)]
)
def test_a_bug_or_an_interrupt_goes_on_after_everything_is_as_it_was(
    bench: Bench, fail: str, error: type[BaseException]
):
    before = bench.state()
    with pytest.raises(error):
        bench.call("write_many", paths=["a", "b"], fail=fail)
    assert bench.state() == before
    assert error.__name__ in (bench.invoked.error or "")
    assert not bench.invoked.success


def test_what_the_operating_system_says_is_a_result(bench: Bench):
    result = bench.call("read_file", file_path="missing.txt")
    assert not result.success
    assert result.message == "No such file or directory: missing.txt"
    assert (bench.invoked.error or "").startswith("FileNotFoundError")


def test_paths_that_lead_out_are_a_result(bench: Bench):
    result = bench.call("write_file", file_path="../../etc/passwd", content="x")
    assert not result.success
    assert "escapes" in result.message


def test_unknown_tools_and_arguments_are_results_that_help(bench: Bench):
    unknown = bench.call("delete_everything")
    assert "read_file, write_file, write_many" in unknown.message
    wrong = bench.call("read_file", path="a")
    assert "file_path" in wrong.message
    assert [each.success for each in bench.session[ToolInvoked].all()] == [False, False]


def test_two_tools_with_one_name_are_refused(bench: Bench):
    context = ToolContext(None, None, None, bench.session)
    with pytest.raises(PromptError, match="the same name"):
        ToolExecutor([*TOOLS, TOOLS[0]], context=context)


def test_a_result_that_is_too_long_is_cut_and_says_so(bench: Bench):
    bench.fs.write("a", "x" * 1000)
    context = ToolContext(None, None, None, bench.session, filesystem=bench.fs)
    executor = ToolExecutor(TOOLS, context=context, max_result_characters=100)
    text = executor.execute(ToolCall("read_file", '{"file_path": "a"}')).text
    assert text.startswith("content:\n\nxxx")
    assert "910 more characters omitted" in text


def test_a_handler_must_return_a_result(bench: Bench):
    def broken(params: Write, *, context: ToolContext) -> ToolResult[str]:
        files(context).write("a", "1")
        return "text"  # type: ignore[return-value]

    context = ToolContext(None, None, None, bench.session, filesystem=bench.fs)
    executor = ToolExecutor([Tool("broken", "Broken.", broken)], context=context)
    with pytest.raises(TypeError, match="must return a ToolResult"):
        executor.execute(ToolCall("broken", {"file_path": "a"}))
    assert not bench.fs.exists("a")


class Special(ToolResult[str]):
    """A result of another kind."""


def test_a_result_may_be_of_a_kind_of_its_own(bench: Bench):
    def special(params: None, *, context: ToolContext) -> ToolResult[str]:
        return Special("done")

    assert bench.executor(Tool("special", "Special.", special)).execute(
        ToolCall("special")
    ).result == Special("done")


def test_a_tool_that_calls_tools_is_one_transaction(bench: Bench):
    def outer(params: Many, *, context: ToolContext) -> ToolResult[str]:
        for path in params.paths:
            done = inner.execute(ToolCall("write_file", {"file_path": path}))
            assert done.result.success
        return ToolResult.error("changed my mind") if params.fail else ToolResult("done")

    context = ToolContext(None, None, None, bench.session, filesystem=bench.fs)
    inner = ToolExecutor(TOOLS, context=context)
    executor = ToolExecutor([Tool("outer", "Calls others.", outer)], context=context)
    executor.execute(ToolCall("outer", {"paths": ["a", "b"], "fail": "yes"}))
    assert bench.state() == ({}, ())
    executor.execute(ToolCall("outer", {"paths": ["a", "b"]}))
    assert bench.state() == ({"a": "", "b": ""}, (Note("a"), Note("b")))
    tools = [each.tool for each in bench.session[ToolInvoked].all()]
    assert tools == ["write_file", "write_file", "outer"] * 2


class LateWorkspace(MarkdownSection[Any]):
    """A section whose files are made when somebody asks."""

    def __init__(self) -> None:
        self._files: InMemoryFilesystem | None = None
        super().__init__(title="Late", template="Files.", tools=[Tool("act", "Acts.", self.act)])

    @property
    def filesystem(self) -> InMemoryFilesystem:
        if self._files is None:
            self._files = InMemoryFilesystem()
            self._files.write("mounted", "old")
        return self._files

    def act(self, params: Many, *, context: ToolContext) -> ToolResult[str]:
        self.filesystem.delete("mounted")
        return write_many(params, context=context)


@pytest.mark.parametrize("fail", ["", "result"])
def test_a_workspace_that_is_made_inside_the_call_is_part_of_it(fail: str):
    section = LateWorkspace()
    prompt = Prompt(ns="a", key="b", sections=[section])
    rendered = prompt.render()
    executor = ToolExecutor(rendered.tools, context=ToolContext(prompt, rendered, None, Session()))
    outcome = executor.execute(ToolCall("act", {"paths": ["a"], "fail": fail}))
    assert outcome.result.success is not bool(fail)
    found = [each.path for each in section.filesystem.glob("**")]
    assert found == (["mounted"] if fail else ["a"])


# --- calls that only read ---


def run(tool: Tool[Any, Any], fs: Filesystem, session: Session, **arguments: Any) -> ToolOutcome:
    context = ToolContext(None, None, None, session, filesystem=fs)
    return ToolExecutor([tool], context=context).execute(ToolCall(tool.name, arguments))


def reader(act: Callable[[Any], object]) -> Tool[Any, Any]:
    """Return a tool that says it only reads, and does `act` to the files."""

    def handler(params: None, *, context: ToolContext) -> ToolResult[str]:
        act(context.filesystem)
        context.session[Note].append(Note("noted"))
        return ToolResult("done")

    return Tool("reader", "Only reads.", handler, read_only=True)


CHANGES: list[Callable[[Any], object]] = [
    lambda fs: fs.write("a", "changed"),
    lambda fs: fs.write_bytes("b/c", b"new"),
    lambda fs: fs.delete("a"),
    lambda fs: fs.mkdir("d"),
    lambda fs: fs.move("a", "b"),
    lambda fs: fs.copy("a", "b"),
    lambda fs: fs.restore(fs.snapshot()),
    lambda fs: fs.import_archive("a.zip"),
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_tool_that_says_it_only_reads_cannot_change_files(bench: Bench, change: Any):
    bench.fs.write("a", "old")
    before = bench.state()
    outcome = run(reader(change), bench.fs, bench.session)
    assert not outcome.result.success
    assert outcome.text.startswith("This call is read-only: ")
    assert bench.state() == before
    bench.fs.write("a", "after the call")


@pytest.mark.parametrize("change", CHANGES)
def test_nor_can_it_in_a_filesystem_that_is_not_one_of_ours(change: Any):
    foreign = MockFilesystem()
    foreign.snapshot = lambda: None  # type: ignore[attr-defined] # as other filesystems have it
    foreign.backend.write("a", "old")
    outcome = run(reader(change), foreign, Session())
    assert outcome.text.startswith("This call is read-only: ")
    assert [each.path for each in foreign.backend.glob("**")] == ["a"]
    assert foreign.backend.read("a").content == "old"


READS: list[Callable[[Any], object]] = [
    lambda fs: fs.read("a").content,
    lambda fs: fs.read_bytes("a").content,
    lambda fs: (fs.exists("a"), fs.stat("a").size_bytes, fs.root),
    lambda fs: [each.path for each in fs.list()],
    lambda fs: [each.path for each in fs.glob("*", use_ignore_files=True)],
    lambda fs: [each.path for each in fs.grep("old", use_ignore_files=True)],
    lambda fs: fs.content_hash("a"),
    lambda fs: isinstance(fs, Filesystem),
]


@pytest.mark.parametrize("read", READS)
def test_it_reads_whatever_the_filesystem_offers(read: Any):
    foreign = MockFilesystem()
    foreign.backend.write("a", "old")
    seen: list[object] = []
    assert run(reader(lambda fs: seen.append(read(fs))), foreign, Session()).result.success
    assert seen == [read(foreign.backend) if read is not READS[-1] else True]


def test_what_it_calls_may_only_read_as_well(bench: Bench):
    def outer(params: None, *, context: ToolContext) -> ToolResult[str]:
        inner = ToolExecutor(TOOLS, context=context)
        return inner.execute(ToolCall("write_file", {"file_path": "a"})).result

    outcome = run(Tool("outer", "Reads.", outer, read_only=True), bench.fs, bench.session)
    assert outcome.text == "This call is read-only: a"
    assert not bench.fs.exists("a")


def test_others_go_on_writing_while_it_reads(bench: Bench):
    def elsewhere(fs: BaseFilesystem) -> None:
        other = Thread(target=fs.write, args=("a", "by another thread"))
        other.start()
        other.join()

    assert run(reader(elsewhere), bench.fs, bench.session).result.success
    assert bench.fs.read("a").content == "by another thread"


@pytest.mark.parametrize("read_only", [True, False])
def test_a_failed_one_takes_back_its_own_notes_and_no_others(bench: Bench, read_only: bool):
    def fail(params: None, *, context: ToolContext) -> ToolResult[str]:
        other = Thread(target=lambda: context.session[FileSeen].append(FileSeen("a", "hash")))
        other.start()
        other.join()
        context.session[Note].append(Note("mine"))
        return ToolResult.error("failed")

    run(Tool("fail", "Fails.", fail, read_only=read_only), bench.fs, bench.session)
    assert bench.session[FileSeen].all() == (FileSeen("a", "hash"),)
    assert bench.session[Note].all() == ()


# --- limits ---


def test_no_call_runs_after_the_deadline(bench: Bench):
    clock = ManualClock()
    bench.given = {"deadline": Deadline.after(10, clock=clock)}
    bench.call("write_file", file_path="a")
    clock.advance(11)
    with pytest.raises(DeadlineExceededError, match="write_file"):
        bench.call("write_file", file_path="b")
    assert not bench.fs.exists("b")
    assert not bench.invoked.success


def test_calls_are_counted_against_the_budget(bench: Bench):
    bench.given = {"budget_tracker": BudgetTracker(Budget(max_tool_calls=2))}
    bench.call("write_file", file_path="a")
    bench.call("write_file", file_path="b")
    with pytest.raises(BudgetExceededError):
        bench.call("write_file", file_path="c")
    assert not bench.fs.exists("c")


# --- changes past the filesystem ---


class CountsLooks(HostFilesystem):
    """Counts how often it is compared with a snapshot."""

    looks = 0

    def view(self, snapshot: FilesystemSnapshot) -> SnapshotFilesystem:
        self.looks += 1
        return super().view(snapshot)


def shell(params: Many, *, context: ToolContext) -> ToolResult[str]:
    for path in params.paths:
        Path(files(context).root, path).write_text("by a shell")
    return ToolResult.error("failed") if params.fail else ToolResult("done")


def test_what_a_shell_changed_is_looked_for_once_and_not_at_all_if_it_failed(tmp_path: Path):
    (tmp_path / "root").mkdir()
    with CountsLooks(tmp_path / "root", git_dir=tmp_path / "store") as fs:
        bench = Bench(fs)
        executor = bench.executor(Tool("shell", "Runs.", shell, bypasses_filesystem=True))
        executor.execute(ToolCall("shell", {"paths": ["a", "b"], "fail": "yes"}))
        assert (fs.looks, bench.fs.list()) == (0, ())
        executor.execute(ToolCall("shell", {"paths": ["a", "b"]}))
        assert (fs.looks, bench.invoked.paths) == (1, ("a", "b"))


def test_a_tool_is_called_by_its_other_names_too():
    def note(params: Note, *, context: ToolContext) -> ToolResult[str]:
        return ToolResult(f"noted {params.text}", "")

    def other(params: Note, *, context: ToolContext) -> ToolResult[str]:
        return ToolResult("other", "")

    tools = (
        Tool("note", "Take a note.", note, other_names=("remark", "other")),
        Tool("other", "Do something else.", other),
    )
    executor = ToolExecutor(tools, context=ToolContext(None, None, None, Session()))
    assert executor.execute(ToolCall("remark", '{"text": "x"}')).text == "noted x"
    # a tool that is offered under the name comes first
    assert executor.execute(ToolCall("other", '{"text": "x"}')).text == "other"
    refused = executor.execute(ToolCall("gone", "{}")).text
    assert refused == "Unknown tool: 'gone'; available tools: note, other"
