"""Policies: what they deny, and the reasons that the model sees."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.bench import TOOLS, Bench, FilePath, Note, files
from weakincentives.adapters import (
    AllowedPaths,
    Approval,
    ApprovalRequest,
    FileSeen,
    Policy,
    ReadBeforeWrite,
    ToolCall,
    ToolExecutor,
)
from weakincentives.filesystem import (
    BaseFilesystem,
    FilesystemSnapshot,
    HostFilesystem,
    InMemoryFilesystem,
    diff,
)
from weakincentives.filesystem.testing import MockFilesystem
from weakincentives.prompt import Tool, ToolAccess, ToolContext, ToolResult
from weakincentives.runtime.session import Session
from weakincentives.runtime.transactions import transaction


@pytest.fixture
def careful(fs: BaseFilesystem) -> Bench:
    return Bench(fs, policies=(ReadBeforeWrite(),))


def test_new_files_need_not_be_read(careful: Bench):
    assert careful.call("write_file", file_path="new", content="1").success
    assert careful.call("write_file", file_path="new", content="2").success


def test_a_file_must_be_read_before_it_is_changed(careful: Bench):
    careful.fs.write("a", "old")
    refused = careful.call("write_file", file_path="a", content="new")
    assert not refused.success
    assert "have not read it" in refused.message
    careful.call("read_file", file_path="./a")
    assert careful.call("write_file", file_path="/x/../a", content="new").success


def test_a_file_that_has_changed_since_must_be_read_again(careful: Bench):
    careful.fs.write("a", "old")
    careful.call("read_file", file_path="a")
    careful.fs.write("a", "changed by somebody")
    refused = careful.call("write_file", file_path="a", content="new")
    assert "has changed since you read it" in refused.message
    careful.fs.write("a", "old")
    assert careful.call("write_file", file_path="a", content="new").success


def test_a_file_that_was_read_may_be_changed_under_its_new_name(careful: Bench):
    for path in ("a", "dir/b", "other"):
        careful.fs.write(path, f"text of {path}")
    careful.call("read_file", file_path="a")
    careful.call("read_file", file_path="dir/b")
    for source, destination in (("a", "moved/a"), ("dir", "moved/dir"), ("other", "moved/other")):
        careful.fs.move(source, destination)
    assert careful.call("write_file", file_path="moved/a", content="new").success
    assert careful.call("write_file", file_path="moved/dir/b", content="new").success
    refused = careful.call("write_file", file_path="moved/other", content="new")
    assert "have not read it" in refused.message


def test_a_copy_of_a_file_that_was_read_must_be_read_itself(careful: Bench):
    careful.fs.write("a", "same")
    careful.fs.write("b", "same")
    careful.call("read_file", file_path="a")
    refused = careful.call("write_file", file_path="b", content="new")
    assert "have not read it" in refused.message


def test_a_huge_file_is_remembered_without_reading_it(tmp_path: Path):
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(64 * 1024**3)
    careful = Bench(HostFilesystem(tmp_path), policies=(ReadBeforeWrite(reads=("look",)),))
    look = Tool(name="look", description="Look.", handler=look_at, read_only=True)
    executor = ToolExecutor(
        (*TOOLS, look),
        context=ToolContext(None, None, None, careful.session, filesystem=careful.fs),
        policies=(ReadBeforeWrite(reads=("look",)),),
    )
    refused = executor.execute(ToolCall("write_file", {"file_path": "huge", "content": "new"}))
    assert "have not read it" in refused.text
    assert executor.execute(ToolCall("look", {"file_path": "huge"})).result.success
    (seen,) = careful.session[FileSeen].all()
    assert seen.content_hash.startswith("68719476736 bytes of ")
    os.utime(tmp_path / "huge", (1, 1))
    changed = executor.execute(ToolCall("write_file", {"file_path": "huge", "content": "new"}))
    assert "has changed since you read it" in changed.text


def look_at(params: FilePath, *, context: ToolContext) -> ToolResult[None]:
    return ToolResult("seen")


def test_what_was_seen_goes_back_with_the_session(careful: Bench):
    careful.fs.write("a", "old")
    careful.session.snapshot("start")
    careful.call("read_file", file_path="a")
    assert [each.path for each in careful.session[FileSeen].all()] == ["a"]
    careful.session.rollback("start")
    assert not careful.call("write_file", file_path="a", content="new").success


def test_what_is_seen_counts_after_a_transaction_that_was_taken_back(careful: Bench):
    careful.fs.write("a", "old")
    with transaction(careful.session) as step:
        careful.call("read_file", file_path="a")
        step.rollback()
    assert not careful.call("write_file", file_path="a", content="new").success
    careful.call("read_file", file_path="a")
    assert careful.call("write_file", file_path="a", content="new").success


def test_only_allowed_paths_are_touched(fs: BaseFilesystem):
    bench = Bench(fs, policies=(AllowedPaths(["src/**"], deny=["**/*.lock"]),))
    assert bench.call("write_file", file_path="src/a.py").success
    refused = bench.call("write_file", file_path="etc/passwd")
    assert "allowed paths are src/**" in refused.message
    assert "denied" in bench.call("write_file", file_path="src/x.lock").message
    assert not bench.call("write_many", paths=["src/b.py", "other"]).success
    assert not fs.exists("src/b.py")
    fs.write("secret", "1")
    assert bench.call("read_file", file_path="secret").success
    strict = Bench(fs, policies=(AllowedPaths(["src/**"], access="any"),))
    assert not strict.call("read_file", file_path="secret").success


def test_a_path_that_was_not_named_is_caught_before_it_is_kept(fs: BaseFilesystem):
    def sneaky(params: FilePath, *, context: ToolContext) -> ToolResult[str]:
        files(context).write("elsewhere", "1")
        return ToolResult("done")

    session = Session()
    context = ToolContext(None, None, None, session, filesystem=fs)
    executor = ToolExecutor(
        [Tool("sneaky", "Sneaky.", sneaky)], context=context, policies=[AllowedPaths(["src/**"])]
    )
    outcome = executor.execute(ToolCall("sneaky", {"file_path": "src/a"}))
    assert "elsewhere may not be accessed" in outcome.text
    assert not fs.exists("elsewhere")


def ask_with(answer: Callable[[ApprovalRequest], bool | str]) -> tuple[Approval, list[str]]:
    """Return a policy that asks, and the patches that it shows."""
    shown: list[str] = []

    def ask(request: ApprovalRequest) -> bool | str:
        shown.append(request.diff.patch())
        return answer(request)

    return Approval(ask), shown


def everything(params: None, *, context: ToolContext) -> ToolResult[str]:
    """Change files in every way."""
    fs = files(context)
    fs.write("a", "new\n")
    fs.write("made/here", "x\n")
    fs.mkdir("empty")
    fs.delete("b")
    fs.move("c", "d")
    context.session[Note].append(Note("done"))
    return ToolResult("done")


EVERYTHING = Tool("everything", "Changes everything.", everything)


def plant(fs: BaseFilesystem) -> None:
    for path in ("a", "b", "c"):
        fs.write(path, f"old {path}\n")


def executor_of(bench: Bench, *policies: Policy, tool: Tool[Any, Any] = EVERYTHING) -> ToolExecutor:
    context = ToolContext(None, None, None, bench.session, filesystem=bench.fs)
    return ToolExecutor([tool], context=context, policies=policies)


def test_what_is_approved_is_what_was_shown(bench: Bench):
    plant(bench.fs)
    assert isinstance(bench.fs, HostFilesystem | InMemoryFilesystem)
    before = bench.fs.snapshot()
    approval, shown = ask_with(lambda _: True)
    assert executor_of(bench, approval).execute(ToolCall("everything")).result.success
    assert shown == [diff(bench.fs.view(before), bench.fs).patch()]
    assert "-old a\n+new" in shown[0]


@pytest.mark.parametrize("answer", [False, "Not this.", ""])
def test_what_is_refused_leaves_no_trace(bench: Bench, answer: bool | str):
    plant(bench.fs)
    before = bench.state()
    approval, shown = ask_with(lambda _: answer)
    outcome = executor_of(bench, approval).execute(ToolCall("everything"))
    assert outcome.text == (answer or "The change was not approved")
    assert bench.state() == before
    assert [each.name for each in bench.fs.list()] == ["a", "b", "c"]
    assert len(shown) == 1
    assert not bench.invoked.success


@pytest.mark.parametrize("error", [RuntimeError("no answer"), KeyboardInterrupt(), EOFError()])
def test_somebody_who_fails_to_answer_approves_nothing(bench: Bench, error: BaseException):
    def fail(request: ApprovalRequest) -> bool:
        raise error

    plant(bench.fs)
    before = bench.state()
    with pytest.raises(type(error)):
        executor_of(bench, Approval(fail)).execute(ToolCall("everything"))
    assert bench.state() == before
    assert not bench.invoked.success


def test_an_empty_directory_is_a_change_to_approve(bench: Bench):
    def make(params: None, *, context: ToolContext) -> ToolResult[str]:
        files(context).mkdir("empty")
        return ToolResult("made")

    approval, shown = ask_with(lambda _: False)
    tool = Tool("make", "Makes.", make)
    executor_of(bench, approval, tool=tool).execute(ToolCall("make"))
    assert len(shown) == 1
    assert not bench.fs.exists("empty")


class Foreign(MockFilesystem):
    """A filesystem that goes back to snapshots, and cannot show them."""

    def snapshot(self, *, tag: str | None = None) -> FilesystemSnapshot:
        return self.backend.snapshot(tag=tag)

    def restore(self, snapshot: FilesystemSnapshot) -> None:
        self.backend.restore(snapshot)


def test_a_change_that_cannot_be_shown_is_refused():
    foreign, session = Foreign(), Session()

    def write(params: FilePath, *, context: ToolContext) -> ToolResult[str]:
        if params.file_path:
            foreign.write(params.file_path, "new")
        return ToolResult("done")

    approval, shown = ask_with(lambda _: True)
    context = ToolContext(None, None, None, session, filesystem=foreign)
    executor = ToolExecutor([Tool("write", "Writes.", write)], context=context, policies=[approval])
    refused = executor.execute(ToolCall("write", {"file_path": "a"}))
    assert refused.text.startswith("The change cannot be shown for approval")
    assert not foreign.backend.exists("a")
    assert executor.execute(ToolCall("write", {"file_path": ""})).result.success
    assert shown == []


def test_somebody_is_asked_with_the_diff_that_would_be_applied(fs: BaseFilesystem):
    asked: list[ApprovalRequest] = []
    answers: list[bool | str] = [False, "Not this file.", True]

    def ask(request: ApprovalRequest) -> bool | str:
        asked.append(request)
        return answers.pop(0)

    fs.write("a", "old\n")
    bench = Bench(fs, policies=(Approval(ask),))
    assert "not approved" in bench.call("write_file", file_path="a", content="new\n").message
    assert bench.call("write_file", file_path="a", content="new\n").message == "Not this file."
    assert fs.read("a").content == "old\n"
    assert bench.call("write_file", file_path="a", content="new\n").success
    assert fs.read("a").content == "new\n"
    assert all("-old\n+new\n" in each.diff.patch() for each in asked[2:])
    assert bench.call("read_file", file_path="a").success
    assert len(asked) == 3


# --- paths that a tool knows only while it runs ---


def copy_listed(params: FilePath, *, context: ToolContext) -> ToolResult[None]:
    """Read the file that a file names, and write it to the other that it names."""
    assert context.filesystem is not None
    source, target = context.filesystem.read(params.file_path).content.split()
    context.check_access(ToolAccess(reads=(source,)))
    context.check_access(ToolAccess(writes=(target,)))
    text = context.filesystem.read(source).content
    context.filesystem.write(target, text, mode="overwrite")
    return ToolResult("copied")


@pytest.mark.parametrize(
    ("policies", "reason"),
    [
        ((), ""),
        ((AllowedPaths(deny=["secret*"]),), ""),
        ((AllowedPaths(deny=["secret*"], access="any"),), "secret may not be accessed"),
        ((AllowedPaths(deny=["target"]),), "target may not be accessed"),
        ((ReadBeforeWrite(),), "target exists and you have not read it"),
    ],
)
def test_policies_decide_on_paths_that_a_tool_finds_while_it_runs(
    policies: tuple[Policy, ...], reason: str
):
    fs = InMemoryFilesystem()
    for path, text in {"list": "secret target", "secret": "key", "target": "old"}.items():
        fs.write(path, text)
    executor = ToolExecutor(
        [Tool(name="copy", description="Copy.", handler=copy_listed)],
        context=ToolContext(None, None, None, Session(), filesystem=fs),
        policies=policies,
    )
    outcome = executor.execute(ToolCall("copy", {"file_path": "list"}))
    assert outcome.text.startswith(reason or "copied")
    assert fs.read("target").content == ("old" if reason else "key")
