"""The `wink` command line: find the command, run it, tell an error in one line.

A command module defines a click command called `command`. It is imported when
its command runs, so that `wink --help` stays quick however many there are.
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
from click.shell_completion import CompletionItem

from weakincentives import __version__
from weakincentives.cli.terminal import say, sentence
from weakincentives.cli.termination import ended_by_signals, termination_of
from weakincentives.errors import WinkError

_FAILED, _MISUSED, _BUG, _INTERRUPTED = 1, 2, 70, 130

_EPILOG = "Exit codes: 0 done, 1 failed, 2 misused, 70 a bug in wink. WINK_TRACEBACK=1 shows where."


@dataclass(frozen=True, slots=True)
class CommandSource:
    """Where a command's module is, and its line in `wink --help`."""

    module: str
    summary: str


COMMANDS: Mapping[str, CommandSource] = {
    "completion": CommandSource(
        "weakincentives.cli.completion", "Print the script that completes wink in a shell."
    ),
    "demo": CommandSource(
        "weakincentives.cli.demo.command", "Watch an agent fix a bug in a small project."
    ),
    "doctor": CommandSource(
        "weakincentives.cli.doctor", "Say what is installed, what is missing, how to get it."
    ),
    "review": CommandSource(
        "weakincentives.cli.review", "Decide later about the changes of a run."
    ),
    "run": CommandSource(
        "weakincentives.cli.run.command", "Let a model work on a copy, then decide."
    ),
}


class LazyGroup(click.Group):
    """A click group that imports a command's module when the command runs."""

    sources: Mapping[str, CommandSource] = COMMANDS

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the commands without importing them."""
        return sorted(self.sources)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module and return its `command`."""
        source = self.sources.get(cmd_name)
        if source is None:
            return None
        try:
            return import_module(source.module).command
        except ImportError as error:
            raise click.ClickException(
                f"Command {cmd_name!r} cannot be loaded: {error}; install what it names"
            ) from error

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that `args` begin with, or say which one was probably meant."""
        if args and not args[0].startswith("-") and args[0] not in self.sources:
            near = difflib.get_close_matches(args[0], self.sources, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "see wink --help"
            raise click.UsageError(f"No such command: {args[0]!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands from their summaries, importing none of them."""
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, self.sources[name].summary) for name in self.list_commands(ctx)]
            )

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the name of a command without importing any."""
        fitting = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        names = [CompletionItem(name, help=self.sources[name].summary) for name in fitting]
        return names + click.Command.shell_complete(self, ctx, incomplete)


@click.group(cls=LazyGroup, invoke_without_command=True, epilog=_EPILOG)
@click.version_option(__version__, prog_name="wink", message="%(prog)s %(version)s")
@click.pass_context
def wink(ctx: click.Context) -> None:
    """A workspace for LLM agents: their files behind one protocol."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `wink` and leave with its exit code; an error is one line on standard error."""
    try:
        with ended_by_signals():
            code = wink.main(arguments, prog_name="wink", standalone_mode=False)
        if sys.stdout is not None:  # pyright: ignore[reportUnnecessaryComparison] # it may be closed
            sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  # a person sees no traceback
        code = _explain(error)
    sys.exit(code if isinstance(code, int) else 0)


def _explain(error: BaseException) -> int:
    """Tell `error` in one line and return the exit code that belongs to it."""
    if os.environ.get("WINK_TRACEBACK"):
        traceback.print_exception(error)
    match error:
        case click.Abort() | KeyboardInterrupt():
            return _interrupted(error)
        case BrokenPipeError():
            # the reader has left; what is still buffered must not raise again at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return _FAILED
        case click.exceptions.NoArgsIsHelpError():
            error.show()
            return _MISUSED
        case click.UsageError():
            return _say(_with_hint(error), _MISUSED)
        case click.ClickException():
            return _say(error.format_message(), error.exit_code)
        case WinkError() | OSError():
            return _say(sentence(error), _FAILED)
        case _:
            return _say(f"this is a bug, please report it: {error!r} (WINK_TRACEBACK=1)", _BUG)


def _interrupted(error: BaseException) -> int:
    ended = termination_of(error)
    if ended is None:
        return _say("interrupted", _INTERRUPTED)
    return _say(f"ended by {ended}", ended.exit_code)


def _with_hint(error: click.UsageError) -> str:
    """Return the message with the help page to read, unless it says what to do already."""
    message = error.format_message().rstrip(".")
    if ";" in message or error.ctx is None:
        return message
    return f"{message}; see {error.ctx.command_path} --help"


def _say(message: str, code: int) -> int:
    """Print `message` as one line on standard error and return `code`."""
    with suppress(OSError):  # nobody is there to read it, after a hang-up for instance
        say(f"wink: {' '.join(message.split())}")
    return code
