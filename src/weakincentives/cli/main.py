"""The `wink` command line: command lookup, shell completion, exit codes, one-line errors.

A command module defines a click command called `command`, or several. It is imported only when
one of them runs, which keeps `wink --help` fast.
"""

import difflib
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module

import click
from click.shell_completion import CompletionItem, get_completion_class

from weakincentives import __version__
from weakincentives.cli.signals import find_termination, raise_on_termination
from weakincentives.cli.terminal import describe_error, echo
from weakincentives.errors import WinkError
from weakincentives.extras import find_clash

EXIT_FAILED, EXIT_USAGE, EXIT_BUG, EXIT_INTERRUPTED = 1, 2, 70, 130
SHELLS = ("bash", "zsh", "fish")

_EPILOG = (
    "Exit codes: 0 success, 1 failure, 2 usage error, 70 a bug in wink."
    " Set WINK_TRACEBACK=1 to see a traceback."
)
_FIRST_COMMANDS = """\
wink demo           watch an agent fix a bug; no key, no network
wink run "TASK"     let a model work on a copy of this directory, then decide
wink review         the runs so far; wink review RUN decides about one
wink mcp . --help   give Claude Code, Codex and others files with undo
wink doctor         what is missing, and the command that installs it

wink --help lists all commands."""
_COMPLETION_EPILOG = """\b
bash: eval "$(wink completion bash)"                                 in ~/.bashrc
zsh:  eval "$(wink completion zsh)"                   in ~/.zshrc, after compinit
fish: wink completion fish > ~/.config/fish/completions/wink.fish
"""


@dataclass(frozen=True, slots=True)
class CommandSource:
    """The module of a command in this package, its line in `wink --help`, and its name there."""

    module: str
    summary: str
    name: str = "command"


_STEPS = "timeline.commands"
COMMANDS: Mapping[str, CommandSource] = {
    "clean": CommandSource("clean", "Remove finished runs."),
    "debug": CommandSource("debug", "Open a recorded run in the browser."),
    "demo": CommandSource("demo.command", "Watch an agent fix a bug in a small project."),
    "doctor": CommandSource("doctor", "Check what is installed and what is missing."),
    "digest": CommandSource("digest", "Print what an agent should know about a directory."),
    "diff": CommandSource(_STEPS, "Print the changes of a run as a patch.", "diff"),
    "export": CommandSource(_STEPS, "Write a run to one file to send, or as a dump.", "export"),
    "fork": CommandSource(_STEPS, "Start a branch after a step of a run.", "fork"),
    "log": CommandSource(_STEPS, "List the steps of a run.", "log"),
    "mcp": CommandSource("mcp.command", "Serve a directory to MCP clients, with undo."),
    "restore": CommandSource(_STEPS, "Write the files of a step to a directory.", "restore"),
    "replay": CommandSource("timeline.replay", "Re-run the recorded tool calls, and compare."),
    "resume": CommandSource("run.command", "Continue a run from any of its steps.", "resume"),
    "show": CommandSource(_STEPS, "Show a step of a run, or a file.", "show"),
    "undo": CommandSource(_STEPS, "Undo a step of a run in its working copy.", "undo"),
    "review": CommandSource("review", "Review the changes of an earlier run."),
    "sandbox": CommandSource("sandbox", "Test the sandboxes here, or run a command in one."),
    "run": CommandSource("run.command", "Let a model work on a copy, then review the changes."),
}


class LazyGroup(click.Group):
    """A click group that imports a command's module when the command runs."""

    sources: Mapping[str, CommandSource] = COMMANDS

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the command names without importing their modules."""
        del ctx  # click's signature
        return sorted({*self.commands, *self.sources})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module and return the command."""
        source = self.sources.get(cmd_name)
        if source is None:
            return super().get_command(ctx, cmd_name)
        try:
            return getattr(import_module(f"{__package__}.{source.module}"), source.name)
        except ImportError as error:
            # a module that needs an extra says how to install it
            fix = "" if "are missing: " in str(error) else "; install the missing package"
            raise click.ClickException(
                f"Command {cmd_name!r} cannot be loaded: {error}{fix}"
            ) from error

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that `args` begin with, or suggest a similar one."""
        names = self.list_commands(ctx)
        if args and not args[0].startswith("-") and args[0] not in names:
            near = difflib.get_close_matches(args[0], names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "see wink --help"
            raise click.UsageError(f"No such command: {args[0]!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands from their summaries, importing none of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self._summary(name)) for name in self.list_commands(ctx)])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete a command name without importing any command."""
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        items = [CompletionItem(name, help=self._summary(name)) for name in names]
        return items + click.Command.shell_complete(self, ctx, incomplete)

    def _summary(self, name: str) -> str:
        source = self.sources.get(name)
        return self.commands[name].get_short_help_str(80) if source is None else source.summary


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},  # of every command
)
@click.version_option(__version__, prog_name="wink", message="%(prog)s %(version)s")
@click.pass_context
def wink(ctx: click.Context) -> None:
    """A workspace for LLM agents, with undo."""
    if ctx.invoked_subcommand is None:
        click.echo(_FIRST_COMMANDS)
    elif ctx.invoked_subcommand != "doctor" and (clash := find_clash()):
        raise click.ClickException(f"{clash.fact}: {clash.fix}")


@wink.command(epilog=_COMPLETION_EPILOG)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script for a shell."""
    script_class = get_completion_class(shell)
    assert script_class is not None
    script = script_class(ctx.find_root().command, {}, "wink", "_WINK_COMPLETE").source()
    # click's script for fish cuts descriptions, such as the task of a run, at a comma
    click.echo(script.replace('string split ","', 'string split --max 1 ","'))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `wink` and exit with its exit code; print an error as one line on standard error."""
    try:
        with raise_on_termination():
            code = wink.main(arguments, prog_name="wink", standalone_mode=False)
        if sys.stdout is not None:  # pyright: ignore[reportUnnecessaryComparison] # it may be closed
            sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  # users see no traceback
        code = _report_error(error)
    sys.exit(code if isinstance(code, int) else 0)


def _report_error(error: BaseException) -> int:
    """Print `error` in one line and return its exit code."""
    if os.environ.get("WINK_TRACEBACK"):
        traceback.print_exception(error)
    match error:
        case click.Abort() | KeyboardInterrupt():
            return _report_interrupt(error)
        case BrokenPipeError():
            # the reader is gone; flushing the buffer at exit must not raise again
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return EXIT_FAILED
        case click.exceptions.NoArgsIsHelpError():
            error.show()
            return EXIT_USAGE
        case click.UsageError():
            return _print_error(_add_help_hint(error), EXIT_USAGE)
        case click.ClickException():
            return _print_error(error.format_message(), error.exit_code)
        case WinkError() | OSError():
            return _print_error(describe_error(error), EXIT_FAILED)
        case _:
            return _print_error(
                f"this is a bug, please report it: {error!r} (WINK_TRACEBACK=1 shows a traceback)",
                EXIT_BUG,
            )


def _report_interrupt(error: BaseException) -> int:
    termination = find_termination(error)
    if termination is None:
        return _print_error("interrupted", EXIT_INTERRUPTED)
    return _print_error(f"terminated by {termination}", termination.exit_code)


def _add_help_hint(error: click.UsageError) -> str:
    """Return the message with a pointer to the help page, unless it already says what to do."""
    message = error.format_message().rstrip(".")
    if ";" in message or error.ctx is None:
        return message
    return f"{message}; see {error.ctx.command_path} --help"


def _print_error(message: str, code: int) -> int:
    """Print `message` as one line on standard error and return `code`."""
    with suppress(OSError):  # the terminal may be gone, for example after a hangup
        echo(f"wink: {' '.join(message.split())}")
    return code
