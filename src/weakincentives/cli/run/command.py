"""The arguments of `wink run` and `wink resume`, and the first line that they print.

Nothing changes the directory before the user decides. What does the work is imported after that
line: it takes longer than a person waits for a sign of life.
"""

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import click

from weakincentives.cli.config import KEYS, load_settings, setting_options
from weakincentives.cli.lazy import defer
from weakincentives.cli.run.action import RunRequest, action_options, add_options, first_line
from weakincentives.cli.terminal import echo
from weakincentives.posix import display_path

F = TypeVar("F", bound=Callable[..., Any])

_start_run = defer("cli.run.rounds", "start_run")
_continue_last = defer("cli.run.rounds", "continue_last")
_resume = defer("cli.run.rounds", "resume")
_MODEL = ("model", "dialect", "effort", "temperature", "context_window", "base_url", "api_key_env")
_LIMITS = ("max_tokens", "deadline", "max_steps")
_COMMANDS = (
    *("sandbox", "command_timeout", "env", "allow_host"),
    *("test_cmd", "test_rounds", "evaluate"),
)
_DECISION = ("apply", "commit", "branch", "patch", "discard", "only", "skip", "merge")
_GROUPS: Mapping[str, tuple[str, ...]] = {
    "Prompt": ("attach", "digest", "project_instructions"),
    "Model": _MODEL,
    "Limits": _LIMITS,
    "Commands": _COMMANDS,
    "Decision": _DECISION,
    "Recording": ("no_dump", "dump", "dump_all", "record"),
    "Output": ("as_json", "quiet", "verbose"),
}
_EPILOG = """\b
Exit codes: 0 done; 1 the run failed, changes so far are kept; 2 usage error;
3 done, changes kept for later; 4 conflict, nothing applied; 130 interrupted;
143 and 129 terminated by SIGTERM and SIGHUP.
Settings: wink.toml, overridden by WINK_MODEL, WINK_DEADLINE and so on,
overridden by these options.
"""
_RESUME_EPILOG = "All other options, the exit codes and the settings: see `wink run -h`."


class GroupedCommand(click.Command):
    """A command whose help lists the options of `_GROUPS` in groups, after all others."""

    is_grouped = True

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, each in its group."""
        options = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
        rows = {str(each.name): each.get_help_record(ctx) for each in options}
        grouped = {name for names in _GROUPS.values() for name in names}
        others = tuple(name for name in rows if name not in grouped)
        for title, names in {"Options": others, **(_GROUPS if self.is_grouped else {})}.items():
            with formatter.section(title):
                formatter.write_dl([row for name in names if (row := rows[name])])


class ShortCommand(GroupedCommand):
    """One whose help leaves out the groups: that of another command has them."""

    is_grouped = False


def run_options(command: F) -> F:
    """Add the options that `wink run` and `wink resume` share, which get them as one `request`."""

    @functools.wraps(command)
    def parse(**options: Any) -> Any:
        given = {name: options.pop(name) for name in KEYS if name in options}
        names = [each.name for each in fields(RunRequest) if each.name in options]
        request = RunRequest(given, **{name: options.pop(name) for name in names})
        return command(request=request, **options)

    options = (
        click.option(
            "--attach",
            multiple=True,
            metavar="FILE",
            help="Send a text file or picture with the task; - is standard input. Repeatable.",
        ),
        setting_options("digest", "project_instructions", *_MODEL, *_LIMITS, *_COMMANDS),
        action_options,
        click.option("--config", metavar="FILE", help="Read this file instead of wink.toml."),
        click.option("--json", "as_json", is_flag=True, help="Print JSON lines and never ask."),
        click.option("--quiet", is_flag=True, help="Print nothing during the run."),
        click.option(
            "--verbose", is_flag=True, help="Print all the command output that the model gets."
        ),
    )
    return add_options(parse, options)


@click.command(cls=GroupedCommand, epilog=_EPILOG)
@click.argument("task", required=False)
@click.option(
    "--continue",
    "is_continued",
    is_flag=True,
    help="Continue the last run on the directory; TASK is optional.",
)
@click.option(
    "--workspace",
    type=click.Path(path_type=Path),
    default=Path(),
    metavar="DIR",
    help="Directory to copy and work on (default: the current one).",
)
@setting_options("exclude")
@click.option(
    "--dump",
    metavar="DIR",
    help="Also write the session and the files to DIR at the end.",
)
@click.option("--no-dump", is_flag=True, help="Do not record the steps.")
@click.option(
    "--dump-all",
    is_flag=True,
    default=None,
    help="Also record .git, virtual environments, node_modules and ignored files.",
)
@click.option(
    "--record",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Record the conversation; scripted:FILE replays it.",
)
@run_options
def command(
    *,
    task: str | None,
    is_continued: bool,
    workspace: Path,
    no_dump: bool,
    request: RunRequest,
) -> None:
    """Let a model work on TASK in a copy of a directory, then review the changes.

    TASK is the task in words, or - to read it from standard input.
    """
    if not is_continued and task is None:
        raise click.UsageError("Missing argument 'TASK'; describe what to do")
    if is_continued and (no_dump or request.settings["exclude"]):
        option = "--no-dump" if no_dump else "--exclude"
        raise click.UsageError(f"{option} cannot be used with --continue; leave it out")
    if request.is_announced:
        _announce(workspace, request, is_continued=is_continued)
    if is_continued:
        code = _continue_last(task, workspace, request)
    else:
        code = _start_run(task, workspace, request, is_recorded=not no_dump)
    raise click.exceptions.Exit(code)


@click.command(cls=ShortCommand, epilog=_RESUME_EPILOG)
@click.argument("run", shell_complete=defer("cli.runs", "complete_run"))
@click.argument("instruction", required=False)
@click.option("--at", "step", metavar="STEP", help="Continue from this step (default: the last).")
@click.option("--name", metavar="NAME", help="Name of the branch, if other steps follow already.")
@click.option(
    "--workspace",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Directory to apply changes to (default: that of the run).",
)
@run_options
def resume(
    *,
    run: str,
    instruction: str | None,
    step: str | None,
    name: str | None,
    workspace: Path | None,
    request: RunRequest,
) -> None:
    """Continue a run from its last step or any other, with its session and conversation.

    RUN is a run ID or its beginning, a path, or last. INSTRUCTION says what to do next; without
    it, an interrupted run continues. Uses the run's working copy, or a new one with --at or if the
    copy is gone. Model and dialect are those of the run unless you choose others.
    """
    if request.is_announced:
        echo(f"Continuing the run {run}")
    code = _resume(run, instruction, request, step=step, name=name, workspace=workspace)
    raise click.exceptions.Exit(code)


def _announce(workspace: Path, request: RunRequest, *, is_continued: bool) -> None:
    """Print the first line of a run, before what does the work is imported."""
    directory = Path(os.path.realpath(workspace.expanduser()))
    if is_continued:
        echo(f"Continuing the last run on {display_path(str(directory))}")
    elif directory.is_dir():
        settings = load_settings(
            directory, file=request.config, environment=os.environ, options=request.settings
        )
        if settings["model"] is not None:
            model, seconds = settings["model"], settings["deadline"]
            echo(first_line(model, directory, seconds, settings.model_variable))
