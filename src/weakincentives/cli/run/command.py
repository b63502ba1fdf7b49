"""`wink run`: a model works on a task in a copy of a directory, and a person decides.

Nothing touches the directory itself before that.
"""

import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from weakincentives.adapters import CancellationToken
from weakincentives.adapters.registry import PROVIDERS
from weakincentives.cli.config import (
    DIALECT_CHOICES,
    LOCAL_SANDBOX,
    SANDBOX_CHOICES,
    ConfigError,
    Settings,
    load_settings,
)
from weakincentives.cli.keyboard import without_echo
from weakincentives.cli.run.job import Job, Plan
from weakincentives.cli.run.model import dialect_of, model_of
from weakincentives.cli.run.options import decision_options, read_decision
from weakincentives.cli.run.report import Report, print_start
from weakincentives.cli.run.view import JsonView, LinesView, QuietView, View
from weakincentives.cli.run.workspace import (
    copy_of,
    dump_place,
    exclusive_lock,
    naming,
    workspace_at,
)
from weakincentives.contrib.tools.dialects import DialectName

_MAX_TASK = 1024 * 1024
_EPILOG = """\b
Exit codes: 0 done and settled; 1 the run failed, what it did so far is kept;
2 misused; 3 done, and the changes wait for you; 4 a conflict, nothing applied;
130 interrupted, 143 and 129 asked to end by SIGTERM and SIGHUP.
Settings: wink.toml, then WINK_MODEL, WINK_DEADLINE and so on, then these options.
"""


@click.command(epilog=_EPILOG)
@click.argument("task")
@click.option(
    "--workspace",
    type=click.Path(path_type=Path),
    default=Path(),
    metavar="DIR",
    help="The directory to work on a copy of; the current one if omitted.",
)
@click.option(
    "--model",
    metavar="NAME",
    help=f"{', '.join(f'{each}:MODEL' for each in PROVIDERS)}, or scripted:FILE to play a script.",
)
@click.option(
    "--dialect", type=click.Choice(DIALECT_CHOICES), help="Whose tools; auto asks the model's name."
)
@click.option("--max-tokens", metavar="N", help="Tokens in all, in and out: 200k.")
@click.option("--deadline", metavar="TIME", help="How long it may take: 90s, 10m, 1h30m.")
@click.option("--max-steps", metavar="N", help="How often the model is asked; 100 if omitted.")
@click.option("--exclude", multiple=True, metavar="GLOB", help="What is not copied; repeatable.")
@click.option(
    "--sandbox",
    type=click.Choice(SANDBOX_CHOICES),
    help="local lets the model run commands on this machine, with no isolation.",
)
@click.option("--base-url", metavar="URL", help="Where the model is, if not at its provider.")
@click.option("--api-key-env", metavar="NAME", help="The variable that holds the key.")
@decision_options
@click.option("--dump", metavar="DIR", help="Where the session and the files are dumped.")
@click.option("--no-dump", is_flag=True, help="Write no dump.")
@click.option(
    "--record",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Record the conversation, to be played by scripted:FILE.",
)
@click.option("--config", metavar="FILE", help="Read this file instead of wink.toml.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines, and ask nothing.")
@click.option("--quiet", is_flag=True, help="Say nothing while it goes on.")
def command(
    task: str,
    workspace: Path,
    apply: bool,
    patch: Path | None,
    discard: bool,
    no_dump: bool,
    record: Path | None,
    config: str | None,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Let a model work on TASK in a copy of a directory, then decide about the changes.

    TASK is what is to be done, in words; - reads it from standard input.
    """
    wish = read_decision(apply=apply, patch=patch, discard=discard)
    original = workspace_at(workspace)
    settings = load_settings(original, file=config, environment=os.environ, options=options)
    cancellation = CancellationToken()
    view = _view(cancellation, as_json=as_json, quiet=quiet)
    with model_of(settings, os.environ, record) as adapter, ExitStack() as stack:
        plan = _plan(_task(task), settings, dialect_of(settings, adapter), no_dump=no_dump)
        with without_echo():
            copy = copy_of(original, settings["exclude"] or (), view)
            stack.enter_context(naming(copy.place))
            stack.enter_context(exclusive_lock(copy.place))
            print_start(view, copy, adapter, plan)
            outcome = Job(plan, copy, adapter, view=view, cancellation=cancellation).run()
        code = Report(view, copy, is_silent=as_json).finish(outcome, wish)
    raise click.exceptions.Exit(code)


def _plan(task: str, settings: Settings, dialect: DialectName, *, no_dump: bool) -> Plan:
    return Plan(
        task,
        dialect,
        has_shell=settings["sandbox"] == LOCAL_SANDBOX,
        max_tokens=settings["max_tokens"],
        max_steps=settings["max_steps"],
        seconds=settings["deadline"],
        dump=None if no_dump else dump_place(settings["dump"], os.environ),
    )


def _task(task: str) -> str:
    said = _typed() if task == "-" else task
    if not said.strip():
        raise ConfigError("The task is empty; say what is to be done")
    return said


def _typed() -> str:
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison] # it may be closed
        raise ConfigError("The task cannot be read; standard input is closed")
    try:
        said = sys.stdin.read(_MAX_TASK + 1)
    except UnicodeDecodeError as error:
        raise ConfigError(f"The task is not UTF-8: {error.reason}; convert it") from error
    if len(said) > _MAX_TASK:
        raise ConfigError(f"The task is longer than {_MAX_TASK:,} characters; shorten it")
    return said


def _view(cancellation: CancellationToken, *, as_json: bool, quiet: bool) -> View:
    if as_json:
        return JsonView(cancellation.cancel)
    return QuietView() if quiet else LinesView()
