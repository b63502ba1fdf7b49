"""What a person sees of a run: exit codes, text as it arrives, waits, tokens and cost."""

import io
import re
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest
from rich.console import Console

from tests.adapters.chat_server import Handler, begin_stream, event, piece, serving
from tests.cli.workplace import Script, Terminal, Wink, edit, on_terminal, shell, write
from weakincentives.adapters import ModelResponded, TokenPrice
from weakincentives.cli.activity import create_console, show_activity
from weakincentives.cli.run.view import LinesView, Progress
from weakincentives.filesystem import FileWritten
from weakincentives.runtime import CommandOutcome, TokenUsage, ToolInvoked, ToolStarted
from weakincentives.runtime.session import Session

LIMIT = 60.0  # seconds; only a failing test reaches it


def lines_of(*events: object, progress: Progress | None = None) -> list[str]:
    """Return what is printed about events where there is no terminal."""
    stream, session = io.StringIO(), Session()
    with LinesView(create_console(stream)).observe(session, progress or Progress()):
        for each in events:
            session.dispatch(each)
    return stream.getvalue().splitlines()


def invoked(command: CommandOutcome | None = None, **given: object) -> ToolInvoked:
    params = {"command": ["pytest", "-q"]}
    return ToolInvoked(tool="shell_execute", params=params, command=command, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (CommandOutcome(exit_code=0), "exit 0"),
        (CommandOutcome(exit_code=1), "failed (exit 1)"),
        (CommandOutcome(exit_code=124, timed_out=True), "timed out (exit 124)"),
        (CommandOutcome(exit_code=137, signal="SIGKILL"), "killed by SIGKILL (exit 137)"),
        (CommandOutcome(), "runs in the background"),
    ],
)
def test_a_line_says_how_the_command_ended(command: CommandOutcome, says: str):
    assert lines_of(invoked(command)) == [f"  shell_execute  pytest -q  {says}  0 ms"]


def test_a_tool_that_does_not_exist_has_no_target(wink: Wink, project: Path, script: Script):
    calls = [{"name": "list_directory", "arguments": {"path": "."}}, {"name": "fly"}]
    model = script(*calls, "Done.")
    done = wink("run", "x", "--workspace", project, "--model", model, "--dialect", "classic")
    lines = [each.split() for each in done.err.splitlines()]
    [unknown] = [each for each in lines if each[:2] == ["failed", "fly"]]
    assert "." not in unknown
    assert any(each[:2] == ["list_directory", "."] for each in lines), done.err


def test_a_failed_command_shows_its_last_lines():
    tail = "\n".join(["first", *map(str, range(5)), "\x1b[2Jlast"])
    command = CommandOutcome(exit_code=1, tail=tail, truncated=True)
    assert lines_of(invoked(command))[1:] == [
        "    [output truncated]",
        *(f"    {each}" for each in range(5)),
        "    ^[[2Jlast",
    ]


def test_a_command_shows_its_last_line_and_all_of_its_output_only_on_request(
    wink: Wink, project: Path, script: Script
):
    model = script(shell("sh", "-c", "seq 1 9; echo '76 passed'"), "Done.")
    arguments = ("run", "x", "--workspace", project, "--model", model, "--sandbox", "local")
    assert re.search(r"exit 0 .*\n    76 passed\n[^ ]", wink(*arguments).err)
    shown = wink(*arguments, "--verbose").err
    assert all(f"    {each}\n" in shown for each in ["stdout:", *range(1, 10), "76 passed"])


def test_what_git_and_caches_need_are_no_changed_files(wink: Wink, project: Path, script: Script):
    (project / ".git").mkdir()
    touch = "mkdir -p a/__pycache__; touch .git/index a/__pycache__/a.pyc .pytest_cache"
    model = script(shell("sh", "-c", f"{touch}; echo end"), "Done.")
    arguments = ("run", "x", "--workspace", project, "--model", model, "--sandbox", "local")
    [line] = [each for each in wink(*arguments).err.splitlines() if "touch" in each]
    assert "a.pyc ·" not in line
    assert "index ·" not in line
    [step] = [each for each in wink("log").out.splitlines() if "touch" in each]
    assert re.search(r"  \[exit 0, [^,]+, a/\]$", step)
    progress = Progress()
    for path in (".git/index", "a/__pycache__/a.pyc", ".pytest_cache"):
        progress.on_change(FileWritten(path, 1, "create"))
    assert not progress.touched


def test_a_failed_call_shows_why_with_its_first_and_last_lines():
    message = "\n".join(f"line {each}" for each in range(20))
    found = lines_of(invoked(success=False, result_message=message))
    assert found[0].startswith("  failed shell_execute  pytest -q")
    assert found[1:] == [
        "    line 0",
        "    …",
        *(f"    line {each}" for each in range(15, 20)),
    ]


def test_without_a_terminal_the_run_is_plain_lines_and_the_answer_alone_is_on_stdout(
    wink: Wink, project: Path, script: Script, monkeypatch: pytest.MonkeyPatch
):
    failing = shell("sh", "-c", "echo one; echo two >&2; exit 3")
    model = script({"text": "I **look**.", "tool_calls": [edit(), failing]}, "# Done\n\nAll `ok`.")
    arguments = ("run", "fix", "--workspace", project, "--model", model, "--sandbox", "local")
    done = wink(*arguments)
    assert done.out == "# Done\n\nAll `ok`.\n"
    assert "\x1b" not in done.err
    assert "\r" not in done.err
    assert "  I **look**.\n" in done.err
    assert "failed (exit 3)" in done.err
    assert "    one\n    two\n" in done.err
    monkeypatch.setenv("FORCE_COLOR", "1")
    done = wink(*arguments)
    assert "\x1b[1;31mfailed (exit 3)" in done.err
    assert "\x1b" not in done.out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in wink(*arguments).err


@pytest.mark.usefixtures("default_sandbox")
def test_json_has_the_exit_code_the_tokens_and_the_cost(
    wink: Wink, project: Path, script: Script, tmp_path: Path
):
    usage = {"input_tokens": 1000, "cached_tokens": 600, "output_tokens": 100}
    model = script({"tool_calls": [shell("sh", "-c", "echo no; exit 3")], "usage": usage}, "Done.")
    config = tmp_path / "prices.toml"
    price = "{ input = 2.0, cached = 0.5, output = 10 }"
    config.write_text(f'sandbox = "local"\n[prices]\n"{model}" = {price}\n')
    done = wink(
        *("run", "fix", "--workspace", project, "--model", model, "--json", "--config", config)
    )
    [step] = [each for each in done.events if each["event"] == "step" and each["step"] == 1]
    assert (step["cached_tokens"], step["cost_usd"]) == (600, 0.0021)
    assert done.call["success"]
    assert done.call["command"] == {
        "exit_code": 3,
        "signal": None,
        "timed_out": False,
        "truncated": False,
        "tail": "no",
        "styled": "",
    }
    assert (done.last["cached_tokens"], done.last["cost_usd"]) == (600, 0.0021)


def test_a_price_that_is_not_known_is_not_shown(wink: Wink, project: Path, script: Script):
    done = wink("run", "fix", "--workspace", project, "--model", script("Done."))
    assert "$" not in done.err
    done = wink("run", "fix", "--workspace", project, "--model", script("Done."), "--json")
    assert done.last["cost_usd"] is None


def test_a_workspace_does_not_set_prices(wink: Wink, project: Path, script: Script):
    (project / "wink.toml").write_text('[prices]\n"openai:gpt-5" = { input = 0, output = 0 }\n')
    done = wink("run", "fix", "--workspace", project, "--model", script("Done."))
    assert done.code == 2
    assert "prices cannot be set by a workspace" in done.err


def test_the_status_line_has_cached_tokens_and_the_cost_until_a_price_is_unknown():
    progress = Progress(price=TokenPrice(2.0, 10.0, 0.5, max_input=5000), now=lambda: 0.0)
    responded = ModelResponded(
        prompt_name="p", adapter="a", model="m", step=1, usage=TokenUsage(2000, 100, 1000)
    )
    progress.on_response(responded)
    assert progress.line().endswith(" · 2.0k tokens in (1.0k cached), 100 out · $0.004")
    large = ModelResponded(prompt_name="p", adapter="a", model="m", step=2, usage=TokenUsage(6000))
    progress.on_response(large)
    assert progress.cost is None
    assert "$" not in progress.line()


def test_the_status_line_names_the_running_command_and_its_last_output():
    now = [0.0]
    progress = Progress(now=lambda: now[0])
    progress.on_tool_start(
        ToolStarted(tool="shell_execute", call_id="1", params={"command": ["pytest", "-q"]})
    )
    now[0] = 34.9
    progress.on_output("stdout", b"one\ntwo \x1b[2J\r")
    assert progress.describe_activity() == "running: pytest -q, 34 s"
    assert progress.last_output() == "two"
    progress.on_tool_call(ToolInvoked(tool="shell_execute", call_id="1"))
    assert progress.describe_activity() == "waiting for the model"
    assert progress.last_output() == ""


def poll(stream: io.StringIO) -> Iterator[str]:
    """Yield what was written until something is; it must come."""
    until = time.monotonic() + LIMIT
    while not stream.getvalue():
        assert time.monotonic() < until
        time.sleep(0.01)
    yield stream.getvalue()


def test_a_long_wait_is_one_plain_line_where_there_is_no_terminal():
    stream = io.StringIO()
    with show_activity("writing \x1b[2J", console=create_console(stream), notice_after=0.01):
        assert list(poll(stream)) == ["writing ^[[2J ...\n"]
    assert stream.getvalue() == "writing ^[[2J ...\n"
    stream = io.StringIO()
    with show_activity("writing", console=create_console(stream)):
        pass
    assert stream.getvalue() == ""


def test_a_long_wait_for_the_model_is_one_plain_line_where_there_is_no_terminal():
    stream, session = io.StringIO(), Session()
    with LinesView(create_console(stream), notice_after=0.01).observe(session, Progress()):
        assert list(poll(stream)) == ["  waiting for the model ...\n"]


# --- on a terminal ---


def test_a_wait_is_a_line_that_goes_away():
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=40)
    with show_activity("comparing the files", console=console):
        list(poll(stream))
        until = time.monotonic() + LIMIT
        while "comparing the files" not in stream.getvalue():
            assert time.monotonic() < until
            time.sleep(0.01)
    assert stream.getvalue().rstrip("\n").endswith("\x1b[2K")  # erased at the end


def test_lines_above_a_live_region_of_changing_height_are_never_erased():
    """Every erased line was drawn by the region itself: count both."""
    stream, session = io.StringIO(), Session()
    view = LinesView(create_console(stream))
    console = Console(file=stream, force_terminal=True, width=60, color_system=None)
    vars(view).update(_console=console, _is_live=True)
    text = "".join(f"paragraph {each} over\ntwo lines\n\n" for each in range(60))
    with view.observe(session, Progress()):
        on_text = view.on_text()
        assert on_text is not None
        for start in range(0, len(text), 7):
            on_text(text[start : start + 7])
    lines = screen(stream.getvalue())
    assert [each for each in lines if each.startswith("paragraph")] == [
        f"paragraph {each} over two lines" for each in range(59)
    ]


def screen(output: str) -> list[str]:
    """Return the lines of an endless terminal after this output."""
    lines, row, column = [""], 0, 0
    for match in re.finditer("\x1b\\[(\\??[0-9;]*)([A-Za-z])|([\n\r])|([^\x1b\n\r]+)", output):
        number, command, move, text = match.groups()
        if text:
            before = lines[row].ljust(column)
            lines[row] = before[:column] + text + before[column + len(text) :]
            column += len(text)
        elif move == "\r":
            column = 0
        elif move:
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif command == "A":
            row = max(0, row - int(number or 1))
        elif command == "K":
            lines[row] = ""
    return [each.rstrip() for each in lines]


@pytest.mark.usefixtures("own_places")
def test_text_is_seen_before_the_answer_is_complete_and_its_markdown_is_rendered(project: Path):
    seen = Event()

    def answer(handler: Handler) -> None:
        begin_stream(handler)
        handler.chunk(event(piece({"role": "assistant", "content": "Hel"})))
        handler.chunk(event(piece({"content": "lo **you**\n\nSecond"})))
        assert seen.wait(LIMIT)  # the person sees the first part before the rest is sent
        handler.chunk(event(piece({"content": " part \x1b]52;c;aGk=\x07."})))
        handler.chunk(event(piece({}, finish_reason="stop")))
        handler.chunk(b"data: [DONE]\n\n")
        handler.chunk(b"")

    with serving(answer) as server:
        terminal = Terminal(
            *("run", "hi", "--workspace", project, "--model", "openai:m"),
            *("--base-url", server.url),
            OPENAI_API_KEY="sk-x",
        )
        terminal.wait_for("Hello .*you")
        seen.set()
        terminal.wait_for("Second part")
        terminal.wait_for(r"end\): \Z")  # what is typed before the question is no answer
        terminal.type("\x04")
        done = terminal.end()
    assert "\x1b[1myou" in done.out
    assert "**" not in done.out
    assert "^[]52;c;aGk=^G" in done.out
    assert "\x1b]52" not in done.out


@pytest.mark.parametrize("columns", [40, 60])
def test_in_a_narrow_terminal_every_line_fits_and_the_result_is_never_cut(
    columns: int, project: Path, script: Script
):
    long = shell("sh", "-c", f"echo {'x' * 200}; exit 3")
    model = script({"text": "数学" * 60, "tool_calls": [long, write("数" * 20 + ".txt")]}, "Done.")
    done = on_terminal(
        *("run", "fix", "--workspace", project, "--model", model, "--sandbox", "local"),
        *("--discard", "--no-dump"),
        size=(40, columns),
        NO_COLOR="1",
    )
    assert "failed (exit 3)" in done.out
    assert "…" in done.out
