"""`wink`: the command line as a user sees it, with and without errors."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

import weakincentives
from tests.cli.workplace import Wink
from weakincentives.cli import main as cli
from weakincentives.cli.main import COMMANDS, CommandSource, LazyGroup
from weakincentives.errors import WinkError

ROOT = Path(__file__).parents[2]


def run(*arguments: str, environment: dict[str, str] | None = None):
    return subprocess.run(
        [sys.executable, "-m", "weakincentives", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **(environment or {})},
    )


@pytest.fixture
def explain(capsys: pytest.CaptureFixture[str]):
    """Return how `wink` ends when its command raises: the exit code and the lines printed."""

    def ending(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> tuple[object, list[str]]:
        @click.command()
        def command() -> None:
            raise error

        monkeypatch.setattr(LazyGroup, "get_command", lambda *_: command)
        with pytest.raises(SystemExit) as exit_:
            cli.main(["demo"])
        return exit_.value.code, capsys.readouterr().err.splitlines()

    return ending


def test_the_version_is_the_one_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert weakincentives.__version__ == project["version"]
    assert run("--version").stdout == f"wink {project['version']}\n"


def test_without_arguments_it_names_the_five_commands_that_matter():
    done = run()
    assert done.returncode == 0
    named = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("wink ")]
    assert named == ["demo", "run", "review", "mcp", "doctor", "--help"]
    assert {*named[:-1]} <= COMMANDS.keys()


def test_help_lists_every_command_with_its_summary():
    done = run("--help")
    assert done.returncode == 0
    for name, source in COMMANDS.items():
        assert re.search(rf"\n  {name} +{re.escape(source.summary)}\n", done.stdout)


def modules_of(*arguments: str) -> set[str]:
    """Return what is loaded after a command."""
    program = f"""
import json, sys
from weakincentives.cli.main import main
try:
    main({arguments!r})
except SystemExit:
    print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stderr.splitlines()[-1]))


def test_help_imports_no_command_and_nothing_heavy():
    loaded = modules_of("--help")
    assert "weakincentives.cli.main" in loaded
    assert not loaded & {f"weakincentives.cli.{source.module}" for source in COMMANDS.values()}
    assert not loaded & {"rich", "msgspec", "re2", "weakincentives.filesystem"}


@pytest.mark.parametrize("command", ["log", "show", "fork", "restore", "export", "diff", "undo"])
def test_help_of_a_command_that_only_looks_at_steps_imports_nothing_that_does_the_work(
    command: str,
):
    assert not modules_of(command, "--help") & {"rich", "msgspec", "re2", "weakincentives.posix"}


@pytest.mark.parametrize("command", ["run", "resume"])
def test_what_a_run_needs_after_its_first_line_is_imported_after_it(command: str):
    loaded = modules_of(command, "--help")
    heavy = ("adapters", "runtime", "filesystem", "contrib", "sandbox", "prompt")
    assert not loaded & {"rich", *(f"weakincentives.{each}" for each in heavy)}


@pytest.mark.parametrize("command", ["log", "show", "fork", "replay"])
def test_commands_that_only_print_steps_load_neither_rich_nor_a_parser(command: str):
    loaded = modules_of(command, "/no/such/run")
    assert "weakincentives.runtime.timeline" in loaded
    assert not loaded & {"rich", "markdown_it", "starlette", "httpx"}


def test_the_shell_completes_a_command_without_loading_it():
    words = {"_WINK_COMPLETE": "bash_complete", "COMP_WORDS": "wink dem", "COMP_CWORD": "1"}
    assert run(environment=words).stdout == "plain,demo\n"


def test_a_command_that_needs_arguments_shows_its_help(capsys, monkeypatch):
    @click.group()
    def command() -> None:
        """Needs one more word."""

    monkeypatch.setattr(LazyGroup, "get_command", lambda *_: command)
    with pytest.raises(SystemExit) as exit_:
        cli.main(["demo"])
    assert exit_.value.code == 2
    assert "Needs one more word." in capsys.readouterr().err


def test_an_unknown_command_is_one_line_that_says_which_was_meant():
    done = run("demos")
    assert done.returncode == 2
    assert done.stderr == "wink: No such command: 'demos'; did you mean 'demo'?\n"
    assert run("xyzzy").stderr == "wink: No such command: 'xyzzy'; see wink --help\n"


def test_an_unknown_option_is_one_line_with_the_help_to_read():
    done = run("--nonsense")
    assert done.returncode == 2
    assert done.stderr.splitlines() == ["wink: No such option '--nonsense'; see wink --help"]


def test_a_command_that_cannot_be_loaded_says_what_is_missing(monkeypatch, capsys):
    sources = {"demo": CommandSource("no_such_module", "")}
    monkeypatch.setattr(LazyGroup, "sources", sources)
    with pytest.raises(SystemExit) as exit_:
        cli.main(["demo"])
    assert exit_.value.code == 1
    error = capsys.readouterr().err
    assert error.startswith("wink: Command 'demo' cannot be loaded")
    assert "no_such_module" in error


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (FileNotFoundError(2, "No such file or directory", "a.txt"), 1, "'a.txt'"),
        (WinkError("Path escapes root: '../x'"), 1, "wink: Path escapes root: '../x'"),
        (click.ClickException("first\nsecond"), 1, "wink: first second"),
        (click.UsageError("Bad value."), 2, "wink: Bad value"),
        (KeyboardInterrupt(), 130, "wink: interrupted"),
        (ZeroDivisionError("oops"), 70, "bug"),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(
    error: BaseException, code: int, line: str, explain, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("WINK_TRACEBACK", raising=False)
    found, lines = explain(error, monkeypatch)
    assert found == code
    assert line in lines[-1]
    assert len([each for each in lines if each]) == 1


def test_a_traceback_is_shown_when_asked_for(explain, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WINK_TRACEBACK", "1")
    _, lines = explain(ZeroDivisionError("oops"), monkeypatch)
    assert lines[0].startswith("Traceback")


def test_a_reader_that_leaves_early_causes_no_complaint():
    program = "from weakincentives.cli.main import main; main(['--help'])"
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=writer, stderr=subprocess.PIPE, check=False
    )
    os.close(writer)
    assert done.stderr == b""
    assert done.returncode == 1


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script_that_asks_wink(shell: str, wink: Wink):
    done = wink("completion", shell)
    assert done.code == 0
    assert f"_WINK_COMPLETE={shell}_complete" in done.out
    assert 'string split ","' not in done.out  # it would cut descriptions at a comma


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_takes_the_script(wink: Wink):
    script = wink("completion", "bash").out
    asked = subprocess.run(
        ["bash", "-c", f"{script}\ncomplete -p wink"], capture_output=True, text=True, check=True
    )
    assert "_wink_completion" in asked.stdout


def test_another_shell_is_refused_in_one_line(wink: Wink):
    done = wink("completion", "tcsh")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "bash" in done.err


@pytest.mark.parametrize("command", ["", *COMMANDS, "completion", "sandbox run"])
def test_every_command_has_a_short_option_for_help(
    command: str, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as exit_:
        cli.main([*command.split(), "-h"])
    assert exit_.value.code == 0
    assert capsys.readouterr().out.startswith("Usage: wink")


@pytest.mark.parametrize("command", [*COMMANDS, "sandbox run", "sandbox build-image"])
def test_help_names_every_default_in_one_way(command: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        cli.main([*command.split(), "-h"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "by default" not in shown
    assert "[default" not in shown


def test_help_of_a_run_has_each_option_once_and_that_of_resume_only_its_own(wink: Wink):
    run, resume = (wink(command, "-h").out for command in ("run", "resume"))
    for group in ("Options", "Prompt", "Model", "Limits", "Commands", "Decision", "Recording"):
        assert run.count(f"\n{group}:\n") == 1
    command = cli.wink.get_command(click.Context(cli.wink), "run")
    assert command is not None
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert len(re.findall(rf"\n  (?:-h, )?{parameter.opts[0]}\b(?!-)", run)) == 1
    assert re.findall(r"\n  (?:-h, )?(--[\w-]+)", resume) == [
        *("--at", "--name", "--workspace", "--config", "--help")
    ]
    assert "`wink run -h`" in resume
