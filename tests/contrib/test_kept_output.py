"""Kept output: long output in a file of the workspace that only the model's tools see."""

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from weakincentives.adapters import (
    AllowedPaths,
    Approval,
    ApprovalRequest,
    Policy,
    ToolCall,
    ToolExecutor,
)
from weakincentives.contrib.review import Review, working_copy
from weakincentives.contrib.tools.dialects import DialectName
from weakincentives.contrib.tools.shell import kept_output, shell_handlers
from weakincentives.contrib.tools.shell.kept_output import OutputSpool
from weakincentives.contrib.tools.suite import filesystem_tools
from weakincentives.filesystem import HostFilesystem, InMemoryFilesystem, Limits
from weakincentives.prompt import ToolContext
from weakincentives.runtime import ToolInvoked
from weakincentives.runtime.session import Session
from weakincentives.sandbox import LocalSandbox

LONG = "seq 1 20000"  # 108,894 bytes
WHOLE = "".join(f"{number}\n" for number in range(1, 20_001))
FILE = ".wink-output/1-stdout.txt"


@dataclass
class Workspace:
    """A workspace with all tools of a dialect, and a shell on the bare host."""

    sandbox: LocalSandbox
    dialect: DialectName = "wink"
    session: Session = field(default_factory=Session)
    policies: tuple[Policy, ...] = ()

    @property
    def fs(self) -> HostFilesystem:
        return self.sandbox.filesystem

    def call(self, name: str, **arguments: Any) -> str:
        tools = filesystem_tools(self.dialect, extra_handlers=shell_handlers(self.sandbox))
        context = ToolContext(None, None, None, self.session, filesystem=self.fs)
        executor = ToolExecutor(tools, context=context, policies=self.policies)
        return executor.execute(ToolCall(name, json.dumps(arguments))).text

    def script(self, text: str, **arguments: Any) -> str:
        return self.call("shell_execute", command=["sh", "-c", text], **arguments)


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    root = tmp_path / "workspace"
    root.mkdir()
    with HostFilesystem(root, git_dir=tmp_path / "store") as fs, LocalSandbox(fs) as sandbox:
        yield Workspace(sandbox)


def test_the_whole_output_is_in_the_file_that_the_result_names(workspace: Workspace):
    told = workspace.script(LONG)
    assert workspace.fs.read_bytes(FILE).content == WHOLE.encode()
    note = told.splitlines()[-1]
    assert note.startswith(
        "[truncated: only the beginning and end of stdout are shown; all 108,894 bytes are in"
        f" '{FILE}'; to read on: read_file with file_path='{FILE}', offset="
    )


def test_the_named_call_reads_on_where_the_output_was_cut(workspace: Workspace):
    told = workspace.script(LONG)
    offset = int(told.splitlines()[-1].rpartition("offset=")[2].removesuffix("]"))
    last_shown = told.partition("[... ")[0].splitlines()[-1]
    page = workspace.call("read_file", file_path=FILE, offset=offset, limit=2)
    assert f"{WHOLE.splitlines()[offset]}\n" in page
    assert WHOLE.splitlines()[offset].startswith(last_shown)


@pytest.mark.parametrize(
    ("dialect", "name", "field", "call"),
    [
        ("claude", "Bash", "command", "Read with file_path='{file}', offset="),
        ("classic", "shell_execute", "command", "read_file with path='{file}'"),
        ("gemini", "run_shell_command", "command", "read_file with file_path='{file}'"),
        ("mcp", "shell_execute", "command", "read_text_file with path='{file}'"),
        ("anthropic-editor", "bash", "command", "str_replace_based_edit_tool with command='view'"),
        ("openai", "exec_command", "cmd", ""),
    ],
)
def test_every_dialect_names_its_own_way_to_read(
    workspace: Workspace, dialect: DialectName, name: str, field: str, call: str
):
    workspace.dialect = dialect
    command: object = ["sh", "-c", LONG] if name == "shell_execute" else LONG
    note = workspace.call(name, **{field: command}).splitlines()[-1]
    assert f"all 108,894 bytes are in '{FILE}'" in note
    assert call.format(file=FILE) in note
    assert ("to read on" in note) == bool(call)


def test_both_streams_are_kept_under_one_number(workspace: Workspace):
    workspace.script(LONG)
    told = workspace.script(f"{LONG}; {LONG} >&2")
    assert "'.wink-output/2-stdout.txt'" in told
    assert "'.wink-output/2-stderr.txt'" in told
    assert workspace.fs.read_bytes(".wink-output/2-stderr.txt").content == WHOLE.encode()


def test_output_that_is_shown_whole_is_not_kept(workspace: Workspace):
    workspace.script("seq 1 100")
    workspace.script(LONG, capture_output=False)
    assert not workspace.fs.exists(".wink-output")


def test_what_a_timed_out_command_printed_is_kept(workspace: Workspace):
    told = workspace.script(f"{LONG}; exec sleep 600", timeout_seconds=5)
    assert "timed out" in told
    assert workspace.fs.read_bytes(FILE).content == WHOLE.encode()


def test_more_than_the_limit_is_cut_and_the_result_says_so(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(OutputSpool.__init__, "__defaults__", (50_000,))
    told = workspace.script(LONG)
    assert f"the first 50,000 of 108,894 bytes are in '{FILE}'" in told
    assert workspace.fs.read_bytes(FILE).content == WHOLE.encode()[:50_000]


def test_searches_and_listings_leave_it_out_unless_they_name_it(workspace: Workspace):
    workspace.fs.write("numbers.txt", "12345\n")
    workspace.script(LONG)
    assert ".wink-output" not in workspace.call("ls")
    assert workspace.call("glob", pattern="**/*.txt").splitlines()[-1] == "numbers.txt"
    assert ".wink-output" not in workspace.call("grep", pattern="^12345$")
    assert "12345" in workspace.call("grep", pattern="^12345$", path=FILE)
    assert "1-stdout.txt" in workspace.call("ls", path=".wink-output")
    workspace.dialect = "mcp"
    assert ".wink-output" not in workspace.call("directory_tree", path=".")


def test_git_in_the_workspace_ignores_it(workspace: Workspace):
    root = workspace.fs.root
    subprocess.run(["git", "init", "-q", root], check=True, capture_output=True)
    workspace.script(LONG)
    status = ["git", "-C", root, "status", "--porcelain", "--untracked-files=all"]
    assert subprocess.run(status, check=True, capture_output=True).stdout == b""


def test_undo_of_the_call_removes_it(workspace: Workspace):
    before = workspace.fs.snapshot()
    workspace.script(LONG)
    workspace.fs.restore(before)
    assert not workspace.fs.exists(".wink-output")


def test_a_call_that_fails_leaves_none(workspace: Workspace):
    workspace.fs.write("src/a", "a")
    workspace.policies = (AllowedPaths(["src/**"]),)
    told = workspace.script(f"{LONG}; echo > outside")
    assert "outside" in told
    assert not workspace.fs.exists(".wink-output")


def test_it_is_no_change_of_the_project_for_policies_events_and_approval(workspace: Workspace):
    asked: list[ApprovalRequest] = []

    def approve(request: ApprovalRequest) -> bool:
        asked.append(request)
        return True

    workspace.policies = (AllowedPaths(["src/**"]), Approval(approve))
    told = workspace.script(f"{LONG}; mkdir -p src; echo > src/new")
    assert told.startswith("exit code 0")
    invoked = workspace.session[ToolInvoked].latest()
    assert invoked is not None
    assert invoked.paths == ("src/new",)
    assert [each.path for request in asked for each in request.diff.entries] == ["src", "src/new"]


def test_a_project_file_moved_there_is_a_change(workspace: Workspace):
    workspace.fs.write("notes", WHOLE[:40_000])
    workspace.policies = (AllowedPaths(["src/**"]),)
    told = workspace.script("mkdir .wink-output; mv notes .wink-output/notes")
    assert "notes" in told
    assert workspace.fs.exists("notes")


def test_a_review_neither_offers_nor_mentions_it(tmp_path: Path):
    original = tmp_path / "original"
    original.mkdir()
    (original / "a").write_text("a\n")
    copy = working_copy(original)
    with (
        HostFilesystem(copy.root, git_dir=copy.git_dir) as fs,
        LocalSandbox(fs) as sandbox,
    ):
        Workspace(sandbox).script(LONG)
        with Review(copy) as review:
            assert not review.diff
            assert review.withheld == ()
        Workspace(sandbox).script("echo b > b")
    with Review(copy) as review:
        assert [each.path for each in review.diff.entries] == ["b"]
        assert review.omissions() == ()
        assert review.apply().paths == ("b",)
        assert sorted(each.name for each in original.iterdir()) == ["a", "b"]
        review.discard()


def test_only_the_newest_files_stay(workspace: Workspace, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kept_output, "MAX_KEPT_FILES", 3)
    for _ in range(5):
        workspace.script(LONG)
    names = [each.name for each in workspace.fs.list(".wink-output")]
    assert names == [".gitignore", "3-stdout.txt", "4-stdout.txt", "5-stdout.txt"]


def test_old_files_give_way_to_new_bytes(workspace: Workspace, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kept_output, "_MAX_KEPT_BYTES", 250_000)
    for _ in range(3):
        workspace.script(LONG)
    names = [each.name for each in workspace.fs.list(".wink-output")]
    assert names == [".gitignore", "2-stdout.txt", "3-stdout.txt"]


def test_a_file_in_the_way_is_told_and_does_not_fail_the_call(workspace: Workspace):
    workspace.fs.write(".wink-output", "mine")
    told = workspace.script(LONG)
    assert told.startswith("exit code 0")
    assert re.search(r"it could not be kept: .*redirect it to a file", told)
    assert workspace.fs.read(".wink-output").content == "mine"


def test_a_quota_is_told_and_does_not_fail_the_call():
    fs = InMemoryFilesystem(limits=Limits(max_total_bytes=1_000))
    with OutputSpool() as spool:
        spool.feed("stdout", WHOLE.encode())
        kept = spool.store(fs, "stdout")["stdout"]
    assert kept.path == ""
    assert "1,000" in kept.problem or "1000" in kept.problem
