"""Shell tools: calls, results for a model, and transactions around them."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from tests.sandbox.process_trees import TimeIsUpWith
from weakincentives.adapters import Policy, ToolCall, ToolExecutor
from weakincentives.adapters.messages import CheckedCall
from weakincentives.contrib.tools.dialects import DialectName
from weakincentives.contrib.tools.sections import HostWorkspaceSection
from weakincentives.contrib.tools.shell import (
    DEFAULT_SHELL_LIMITS,
    MAX_SHELL_SECONDS,
    SHELL_TOOL_SPECS,
    ShellLimits,
    shell_handlers,
    shell_tools,
)
from weakincentives.contrib.tools.suite import filesystem_tools
from weakincentives.filesystem import (
    Diff,
    FileDeleted,
    Filesystem,
    FileWritten,
    HostFilesystem,
    InMemoryFilesystem,
)
from weakincentives.prompt import PromptError, Tool, ToolContext
from weakincentives.runtime import CommandOutcome, Deadline, DeadlineExceededError, ToolInvoked
from weakincentives.runtime.session import Session
from weakincentives.sandbox import (
    ExecResult,
    LocalSandbox,
    NetworkConnection,
    Output,
    Sandbox,
    SandboxUnavailableError,
)

SUCCESS = ExecResult(("x",), 0)


@dataclass
class ShellWorkspace:
    """One workspace, one session, and the tools of a sandbox."""

    sandbox: Sandbox
    session: Session = field(default_factory=Session)
    given: dict[str, Any] = field(default_factory=dict)
    policies: tuple[Policy, ...] = ()
    limits: ShellLimits = DEFAULT_SHELL_LIMITS

    @property
    def fs(self) -> Filesystem:
        return self.sandbox.filesystem

    def call(self, name: str, dialect: str = "wink", **arguments: Any) -> str:
        """Call a tool, and return the text for the model."""
        context = ToolContext(None, None, None, self.session, filesystem=self.fs, **self.given)
        tools = shell_tools(self.sandbox, dialect, limits=self.limits)
        executor = ToolExecutor(tools, context=context, policies=self.policies)
        self.outcome = executor.execute(ToolCall(name, json.dumps(arguments)))
        return self.outcome.text

    def run(self, *command: str, **arguments: Any) -> str:
        return self.call("shell_execute", command=command, **arguments)

    def script(self, text: str, **arguments: Any) -> str:
        return self.run("sh", "-c", text, **arguments)

    @property
    def result(self) -> ExecResult:
        assert isinstance(self.outcome.result.value, ExecResult)
        return self.outcome.result.value

    @property
    def invoked(self) -> ToolInvoked:
        found = self.session[ToolInvoked].latest()
        assert found is not None
        return found


@dataclass
class ScriptedSandbox:
    """A sandbox that returns a scripted result and records its last call."""

    filesystem: Filesystem
    answer: ExecResult | Exception
    last_exec: dict[str, Any] = field(default_factory=dict)

    def exec(self, argv: Sequence[str], **options: Any) -> ExecResult:
        self.last_exec = {"argv": tuple(argv), **options}
        self.filesystem.write("done", "yes")
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def close(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[ShellWorkspace]:
    root = tmp_path / "workspace"
    root.mkdir()
    with HostFilesystem(root, git_dir=tmp_path / "store") as fs, LocalSandbox(fs) as sandbox:
        yield ShellWorkspace(sandbox)


def scripted(answer: ExecResult | Exception = SUCCESS) -> ShellWorkspace:
    return ShellWorkspace(ScriptedSandbox(InMemoryFilesystem(), answer))


def last_exec(workspace: ShellWorkspace) -> Mapping[str, Any]:
    assert isinstance(workspace.sandbox, ScriptedSandbox)
    return workspace.sandbox.last_exec


# --- the answer ---


def test_the_exit_code_comes_first_then_both_streams_by_name():
    result = ExecResult(("x",), 2, Output(b"one\ntwo\n"), Output(b"oops"), duration_ms=1_234)
    assert scripted(result).run("x") == "exit code 2 after 1.2 s\nstdout:\none\ntwo\nstderr:\noops"


def test_what_was_not_printed_is_not_shown():
    assert scripted(ExecResult(("x",), 0)).run("x") == "exit code 0 after 0.0 s\nNo output."
    only = ExecResult(("x",), 1, err=Output(b"oops\n"))
    assert scripted(only).run("x") == "exit code 1 after 0.0 s\nstderr:\noops"


def test_a_program_is_told_of_its_result_as_a_value(workspace: ShellWorkspace):
    workspace.script("echo out; exit 3")
    result = workspace.outcome.result
    assert result.success
    assert (workspace.result.exit_code, workspace.result.stdout) == (3, "out\n")


def test_a_command_that_ran_out_of_time_says_what_to_do():
    late = ExecResult(("x",), 124, Output(b"so far"), duration_ms=30_000, timed_out=True)
    told = scripted(late).run("x")
    assert told.startswith("exit code 124: timed out after 30.0 s")
    assert "Files it wrote are kept" in told
    assert "so far" in told
    assert told.endswith(
        "Use shell_execute with timeout_seconds=120, or split it into several commands."
    )
    at_the_limit = scripted(late).run("x", timeout_seconds=120)
    assert at_the_limit.endswith("Split it into commands that take less time.")


@pytest.mark.parametrize(
    ("dialect", "name", "field", "advice"),
    [
        (
            "claude",
            "Bash",
            "command",
            "Use Bash with timeout=120000, or split it into several commands.",
        ),
        ("anthropic-editor", "bash", "command", "Split it into commands that take less time."),
        ("openai", "exec_command", "cmd", "Split it into commands that take less time."),
        ("gemini", "run_shell_command", "command", "Split it into commands that take less time."),
    ],
)
def test_advice_names_only_what_the_dialect_has(dialect: str, name: str, field: str, advice: str):
    late = scripted(ExecResult(("x",), 124, timed_out=True))
    arguments = {field: "x", **({"timeout": 1000} if name == "Bash" else {})}
    assert late.call(name, dialect, **arguments).endswith(advice)


def test_a_signal_and_what_was_left_running_are_told():
    result = ExecResult(("x",), 137, signal="SIGKILL", stopped_processes=2)
    told = scripted(result).run("x")
    assert told.startswith("exit code 137: ended by SIGKILL")
    assert "2 background processes were stopped: processes do not outlive" in told


def test_a_refused_connection_is_explained_once():
    reason = "wink: x.example is not allowed; the user can allow it with --allow-host x.example"
    refused = NetworkConnection(host="x.example", port=443, allowed=False, reason=reason)
    made = NetworkConnection(host="y.example", port=443, reason="no data for 300 seconds")
    result = ExecResult(("x",), 56, connections=(refused, made, refused))
    assert scripted(result).run("x") == (
        "exit code 56 after 0.0 s\nNo output.\n[network: x.example is not allowed; the user can"
        " allow it with --allow-host x.example]"
    )


def test_of_many_refused_connections_a_few_are_explained():
    connections = tuple(
        NetworkConnection(host=f"{each}.example", port=443, reason=f"wink: {each}")
        for each in range(7)
    )
    text = scripted(ExecResult(("x",), 0, connections=connections)).run("x")
    assert text.endswith("[network: 4]\n[network: 2 more]")


def test_long_output_keeps_its_ends_and_says_so(workspace: ShellWorkspace):
    told = workspace.script("echo first; head -c 1000000 /dev/zero | tr '\\0' x; echo last")
    assert "\nstdout:\nfirst\nxxx" in told
    assert "xxxlast\n[truncated: only the beginning and end of stdout are shown" in told
    assert "bytes left out" in told
    assert len(told) < 33_500
    assert len(workspace.result.out.data) == 32 * 1024


def test_two_long_streams_share_what_a_result_may_have():
    long = Output(b"o" * 32_768)
    told = scripted(ExecResult(("x",), 0, long, Output(b"e" * 32_768))).run("x")
    assert len(told) < 51_000
    assert abs(told.count("o" * 100) - told.count("e" * 100)) <= 1
    told = scripted(ExecResult(("x",), 0, long, Output(b"e" * 1_000))).run("x")
    assert "e" * 1_000 in told
    assert "left out" not in told


def test_what_is_binary_is_shown_in_short(workspace: ShellWorkspace):
    told = workspace.run("head", "-c", "30000", "/dev/zero")
    assert "stdout:\n\\x00\\x00" in told
    assert "binary, 30,000 bytes in all" in told
    assert len(told) < 2_000


@pytest.mark.parametrize(
    ("printed", "text"),
    [
        (r"\033[1;31mred\033[0m \033[38;5;9mor\033[m", "red or"),
        (r"\033]0;title\007shown \033]8;;http://x\033\\link\033]8;;\033\\", "shown link"),
        (r"\033[2K\033[1Gline\033(B\033[?25h", "line"),
        (r"\033]never ended", "never ended"),
        (r"a\033", r"a\x1b"),
    ],
)
def test_escape_sequences_of_terminals_are_left_out(
    workspace: ShellWorkspace, printed: str, text: str
):
    assert workspace.run("printf", printed).endswith(f"stdout:\n{text}")
    outcome = outcome_of(workspace)
    assert outcome.tail == text
    assert bool(outcome.styled) == (r"\033[1;31m" in printed)


def test_long_output_with_escape_sequences_is_kept_without_them(workspace: ShellWorkspace):
    told = workspace.run("sh", "-c", "yes \"$(printf '\\033[32mok\\033[0m')\" | head -n 20000")
    assert "\x1b" not in told
    assert r"\x1b" not in told
    kept = workspace.fs.read_bytes(".wink-output/1-stdout.txt").content
    assert kept == b"ok\n" * 20_000
    assert "all 60,000 bytes are in '.wink-output/1-stdout.txt'" in told


def test_output_can_be_left_out(workspace: ShellWorkspace):
    told = workspace.script("echo hello", capture_output=False)
    assert "hello" not in told
    assert told.endswith("Output was not captured.")


def test_a_line_given_as_one_argument_is_explained(workspace: ShellWorkspace):
    told = workspace.run("echo hello")
    assert told.startswith("exit code 127")
    assert "No such program on PATH: 'echo hello'" in told
    assert "['sh', '-c', 'echo hello']" in told


# --- the request ---


def test_everything_that_is_asked_for_reaches_the_command(workspace: ShellWorkspace):
    workspace.fs.write("d/a", "")
    told = workspace.script("pwd; cat; echo $A", cwd="d", stdin="in\n", env={"A": "b"})
    assert told.endswith(f"stdout:\n{workspace.fs.root}/d\nin\nb")
    assert workspace.run("ls", cwd=f"{workspace.fs.root}/d").endswith("stdout:\na")


def test_the_names_of_the_specification_and_of_others_are_taken():
    for name in ("command", "commands", "argv"):
        workspace = scripted()
        arguments: dict[str, Any] = {name: ["a", "b"], "timeout": 7}
        workspace.call("shell_execute", **arguments)
        assert last_exec(workspace)["argv"] == ("a", "b")
        assert (last_exec(workspace)["timeout"], last_exec(workspace)["max_output"]) == (
            7,
            32 * 1024,
        )


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"command": []}, "has no program name"),
        ({"command": ["x" * 4_097]}, "4097 characters; the limit is 4096"),
        ({"command": ["echo", "é"]}, "must be ASCII"),
        ({"command": ["true"], "timeout_seconds": 0.5}, "from 1 to 120"),
        ({"command": ["true"], "timeout_seconds": 121}, "from 1 to 120"),
        ({"command": ["true"], "cwd": "../.."}, "escapes"),
        ({"command": ["true"], "cwd": "missing"}, "No such file or directory: missing"),
        ({"command": ["true"], "env": {"A=B": ""}}, "Variable"),
        ({"command": ["a\0"]}, "NUL"),
        ({}, "command"),
    ],
)
def test_a_wrong_request_is_refused_with_a_reason(
    workspace: ShellWorkspace, arguments: dict[str, Any], reason: str
):
    assert reason in workspace.call("shell_execute", **arguments)
    assert not workspace.outcome.result.success


@pytest.mark.parametrize("dialect", sorted(SHELL_TOOL_SPECS))
@pytest.mark.parametrize(
    ("command", "printed"),
    [
        ("printf '%s.' a b | tr a x", "x.b."),
        (["printf", "%s.", "a b", "$HOME"], "a b.$HOME."),
        ('["printf", "%s.", "c d"]', "c d."),
        (["sh", "-c", "printf %s. 'e f'"], "e f."),
    ],
)
def test_every_dialect_takes_a_line_and_a_list_of_words(
    workspace: ShellWorkspace, dialect: str, command: str | list[str], printed: str
):
    name, field = {
        "claude": ("Bash", "command"),
        "anthropic-editor": ("bash", "command"),
        "openai": ("exec_command", "cmd"),
        "gemini": ("run_shell_command", "command"),
    }.get(dialect, ("shell_execute", "command"))
    if isinstance(command, str) and command.startswith("[") and name != "shell_execute":
        command = json.loads(command)  # a line for a shell may begin so
    told = workspace.call(name, dialect, **{field: command})
    assert told.endswith(f"stdout:\n{printed}")


def test_limits_can_be_lifted(workspace: ShellWorkspace):
    workspace.limits = ShellLimits(max_command_length=100_000, ascii_commands=False, max_output=10)
    assert "é" in workspace.run("printf", "é")
    assert "left out" in workspace.run("printf", "x" * 5_000)


@pytest.mark.parametrize(
    ("dialect", "name", "arguments", "seconds"),
    [
        ("claude", "Bash", {"command": "LINE", "description": "Try", "timeout": 2_500}, 2.5),
        ("claude", "Bash", {"command": "LINE", "timeout": 600_000}, 120),
        ("anthropic-editor", "bash", {"command": "LINE", "restart": False}, 120),
        ("openai", "exec_command", {"cmd": "LINE", "yield_time_ms": 60_000, "tty": True}, 120),
        ("openai", "exec_command", {"command": "LINE", "workdir": ".", "login": True}, 120),
        ("gemini", "run_shell_command", {"command": "LINE", "is_background": False}, 120),
        ("gemini", "run_shell_command", {"command": "LINE", "directory": "."}, 120),
    ],
)
def test_each_dialect_has_its_own_way_to_run_a_line(
    workspace: ShellWorkspace, dialect: str, name: str, arguments: dict[str, Any], seconds: float
):
    line = "echo a | cat; echo \"$((1 + 1)) é\" > 'b c'; cat b*; false"
    told = {key: line if value == "LINE" else value for key, value in arguments.items()}
    assert workspace.call(name, dialect, **told).endswith("stdout:\na\n2 é")
    assert workspace.result.exit_code == 1
    other = scripted()
    other.call(name, dialect, **told)
    assert last_exec(other)["timeout"] == seconds


def test_a_line_goes_to_bash_or_to_sh_where_there_is_none(
    workspace: ShellWorkspace, tmp_path: Path
):
    shown = workspace.call("Bash", "claude", command="echo ${BASH_VERSION:+bash}; echo $0")
    assert shown.endswith("stdout:\nbash\nbash")
    only_sh = tmp_path / "bin"
    only_sh.mkdir()
    (only_sh / "sh").symlink_to("/bin/sh")
    assert isinstance(workspace.fs, HostFilesystem)
    with LocalSandbox(workspace.fs, env={"PATH": str(only_sh)}) as sandbox:
        assert (
            ShellWorkspace(sandbox)
            .call("Bash", "claude", command="echo $0")
            .endswith("stdout:\nsh")
        )


def test_a_line_may_be_longer_than_a_command_but_not_endless():
    workspace = scripted()
    assert workspace.call("Bash", "claude", command="echo " + "x" * 10_000).startswith(
        "exit code 0"
    )
    assert "Write it to a file" in workspace.call("Bash", "claude", command="x" * 32_769)
    assert "positive" in workspace.call("Bash", "claude", command="x", timeout=0)
    assert "command" in workspace.call("bash", "anthropic-editor")
    assert workspace.call("bash", "anthropic-editor", restart=True).startswith("exit code 0")
    workspace.call("exec_command", "openai", cmd="x", max_output_tokens=100)
    assert last_exec(workspace)["max_output"] == 400


def test_nothing_runs_in_the_background():
    for name, dialect, key in (
        ("Bash", "claude", "run_in_background"),
        ("run_shell_command", "gemini", "is_background"),
    ):
        workspace = scripted()
        assert "Commands cannot run in the background" in workspace.call(
            name, dialect, command="x", **{key: True}
        )
        assert last_exec(workspace) == {}


@pytest.mark.parametrize("dialect", sorted(SHELL_TOOL_SPECS))
def test_every_dialect_says_that_its_tools_change_files_past_the_workspace(dialect: str):
    tools: Sequence[Tool[Any, Any]] = shell_tools(scripted().sandbox, dialect)
    assert [each.bypasses_filesystem for each in tools] == [True]
    assert all("$" not in each.description for each in tools)
    assert all(each.schema["additionalProperties"] is False for each in tools)


def test_an_unknown_dialect_is_refused():
    with pytest.raises(PromptError, match="Dialect"):
        shell_tools(scripted().sandbox, "klingon")


# --- the transaction ---


def test_what_a_command_changes_is_told_to_the_session(workspace: ShellWorkspace):
    told: list[FileWritten | FileDeleted] = []
    workspace.session.bus.subscribe(FileWritten, told.append)
    workspace.session.bus.subscribe(FileDeleted, told.append)
    workspace.fs.write("kept", "1")
    workspace.fs.write("old", "1")
    workspace.script("echo 2 > new; mkdir d; echo 3 > d/x; rm old; chmod 700 new")
    assert {(type(each), each.path) for each in told} == {
        (FileWritten, "new"),
        (FileWritten, "d/x"),
        (FileDeleted, "old"),
    }
    assert set(workspace.invoked.paths) == {"new", "d/x", "old"}
    assert workspace.invoked.snapshot_ref is not None


def test_what_a_failed_command_has_written_stays(workspace: ShellWorkspace):
    told = workspace.script("echo 1 > report; exit 1")
    assert told.startswith("exit code 1 ")
    assert workspace.invoked.success
    assert workspace.fs.read("report").content == "1\n"


def test_what_a_command_has_written_before_its_time_was_up_stays(workspace: ShellWorkspace):
    assert isinstance(workspace.fs, HostFilesystem)
    clock = TimeIsUpWith(Path(workspace.fs.root) / "report")
    with LocalSandbox(workspace.fs, grace=0.1, clock=clock) as sandbox:
        told = ShellWorkspace(sandbox).script("echo 1 > .new; mv .new report; echo; sleep 60")
    assert told.startswith("exit code 124: ")
    assert workspace.fs.read("report").content == "1\n"


class Forbidding(Policy):
    """Lets nothing stay."""

    def review(self, call: CheckedCall, changed: Sequence[str], diff: Diff | None) -> str | None:
        return f"not allowed: {', '.join(sorted(changed))}"


def test_a_call_that_fails_is_taken_back(workspace: ShellWorkspace):
    workspace.fs.write("a", "before")
    workspace.policies = (Forbidding(),)
    events: list[FileWritten] = []
    workspace.session.bus.subscribe(FileWritten, events.append)
    told = workspace.script("echo after > a; mkdir -p x/y; echo 1 > x/y/z; ln -s / out")
    assert told == "not allowed: a, out, x/y/z"
    assert [each.path for each in workspace.fs.list()] == ["a"]
    assert workspace.fs.read("a").content == "before"
    assert events == []
    assert not workspace.invoked.success


def test_a_sandbox_that_fails_is_not_a_result_and_leaves_nothing():
    workspace = scripted(SandboxUnavailableError("The engine is gone"))
    with pytest.raises(SandboxUnavailableError, match="gone"):
        workspace.run("x")
    assert last_exec(workspace)["argv"] == ("x",)
    assert not workspace.fs.exists("done")
    assert not workspace.invoked.success
    assert "The engine is gone" in (workspace.invoked.error or "")


def test_a_sandbox_that_is_lost_on_the_way_leaves_nothing(workspace: ShellWorkspace):
    with pytest.raises(SandboxUnavailableError):
        workspace.script("echo 1 > half; kill -KILL $PPID; sleep 60")
    assert not workspace.fs.exists("half")


def test_no_command_runs_longer_than_the_deadline():
    workspace = scripted()
    workspace.given = {"deadline": Deadline.after(50)}
    workspace.run("x", timeout_seconds=MAX_SHELL_SECONDS)
    assert 0 < last_exec(workspace)["timeout"] <= 50


def test_a_call_that_the_deadline_ends_is_taken_back(workspace: ShellWorkspace):
    workspace.given = {"deadline": Deadline.after(1)}
    with pytest.raises(DeadlineExceededError):
        workspace.script("echo 1 > half; sleep 60")
    assert not workspace.fs.exists("half")


def test_a_sandbox_on_other_files_is_refused(workspace: ShellWorkspace):
    other = InMemoryFilesystem()
    context = ToolContext(None, None, None, Session(), filesystem=other)
    executor = ToolExecutor(shell_tools(workspace.sandbox), context=context)
    outcome = executor.execute(ToolCall("shell_execute", {"command": ["touch", "a"]}))
    assert "give both the same filesystem" in outcome.text
    assert not workspace.fs.exists("a")


# --- the suite ---


@pytest.mark.parametrize(
    ("dialect", "name"),
    [("wink", "shell_execute"), ("claude", "Bash"), ("gemini", "run_shell_command")],
)
def test_the_tools_of_a_dialect_run_commands_only_where_a_sandbox_is(
    workspace: ShellWorkspace, dialect: DialectName, name: str
):
    assert name not in {each.name for each in filesystem_tools(dialect)}
    more = shell_handlers(workspace.sandbox)
    (tool,) = [each for each in filesystem_tools(dialect, extra_handlers=more) if each.name == name]
    assert tool.bypasses_filesystem
    key = {"wink": {"command": ["echo", "hello"]}}.get(dialect, {"command": "echo hello"})
    context = ToolContext(None, None, None, workspace.session, filesystem=workspace.fs)
    outcome = ToolExecutor([tool], context=context).execute(ToolCall(name, key))
    assert outcome.text.endswith("stdout:\nhello")


def test_a_section_with_a_sandbox_tells_the_model_of_its_shell(workspace: ShellWorkspace):
    section = HostWorkspaceSection(
        filesystem=workspace.fs, dialect="claude", extra_handlers=shell_handlers(workspace.sandbox)
    )
    assert "Bash" in {each.name for each in section.tools}
    assert "`Bash`" in section.render_text(None)


# --- what those who watch a run are told ---


def outcome_of(workspace: ShellWorkspace) -> CommandOutcome:
    """Return how the last command ended, from the event of its call."""
    event = workspace.session[ToolInvoked].latest()
    assert event is not None
    assert event.success
    assert event.command is not None
    return event.command


@pytest.mark.parametrize(
    ("dialect", "name", "arguments"),
    [
        ("wink", "shell_execute", {"command": ["sh", "-c", "echo no; exit 3"]}),
        ("claude", "Bash", {"command": "echo no; exit 3"}),
        ("openai", "exec_command", {"cmd": "echo no; exit 3"}),
        ("gemini", "run_shell_command", {"command": "echo no; exit 3"}),
    ],
)
def test_the_event_of_a_call_has_the_exit_code_of_its_command(
    workspace: ShellWorkspace, dialect: str, name: str, arguments: dict[str, Any]
):
    workspace.call(name, dialect, **arguments)
    assert outcome_of(workspace) == CommandOutcome(exit_code=3, tail="no")
    workspace.run("no-such-program")
    told = "No such program on PATH: 'no-such-program'"  # nobody printed it
    assert outcome_of(workspace).tail.startswith(told)
    assert outcome_of(workspace).failed


def test_the_last_lines_of_a_failed_command_are_in_the_order_of_printing(
    workspace: ShellWorkspace,
):
    workspace.script("seq 1 99; echo bad >&2; exit 1")
    tail = outcome_of(workspace).tail
    assert tail.split("\n")[-2:] == ["99", "bad"]
    assert len(tail.split("\n")) == 10
    workspace.script("seq 1 99")
    assert outcome_of(workspace) == CommandOutcome(exit_code=0, tail="99")
    workspace.script("kill -9 $$")
    assert (outcome_of(workspace).exit_code, outcome_of(workspace).signal) == (137, "SIGKILL")
    workspace.script("seq 1 99999; exit 1", capture_output=False)
    assert outcome_of(workspace).tail == ""
    workspace.script("seq 1 99999; exit 1")
    assert outcome_of(workspace).truncated


def test_output_is_passed_on_while_a_command_prints(workspace: ShellWorkspace, tmp_path: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    seen = bytearray()

    def on_output(stream: str, data: bytes) -> None:
        seen.extend(data)
        if seen == b"ready\n" and stream == "stdout":
            pipe.write_text("go on\n")  # the command waits for it

    tools = filesystem_tools(extra_handlers=shell_handlers(workspace.sandbox, on_output=on_output))
    context = ToolContext(None, None, None, workspace.session, filesystem=workspace.fs)
    script = f"echo ready; cat {pipe}; echo two >&2"
    call = ToolCall("shell_execute", {"command": ["sh", "-c", script]})
    ToolExecutor(tools, context=context).execute(call)
    assert sorted(seen.split()) == [b"go", b"on", b"ready", b"two"]


@pytest.mark.parametrize("dialect", SHELL_TOOL_SPECS)
def test_every_dialect_tells_the_model_the_time_limit_that_holds(
    dialect: str, workspace: ShellWorkspace
):
    tools = shell_tools(workspace.sandbox, dialect, limits=ShellLimits(max_seconds=777))
    told = [each for each in tools if "777" in each.description]
    assert [each.name for each in told] == [tools[0].name]
