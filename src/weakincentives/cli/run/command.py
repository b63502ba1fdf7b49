"""`wink run`: a model works on a task in a copy of a directory, and the user decides.

Nothing changes the directory itself before that decision. `wink resume` continues from any step.
"""

import os
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import click

from weakincentives.adapters import EFFORTS, PROVIDERS, CancellationToken, RunOptions
from weakincentives.cli import runs
from weakincentives.cli.config import (
    AUTO,
    DIALECT_CHOICES,
    ENGINE_CHOICES,
    SANDBOX_CHOICES,
    ConfigError,
    Settings,
    describe_server,
    load_settings,
)
from weakincentives.cli.run.action import Action, action_options, check_repository
from weakincentives.cli.run.attachments import STANDARD_INPUT, Attachment, load_attachments
from weakincentives.cli.run.continuation import EarlierRun
from weakincentives.cli.run.job import Job
from weakincentives.cli.run.lines import LinesView
from weakincentives.cli.run.model import check_options, choose_dialect, create_model
from weakincentives.cli.run.recovery import compare_copy
from weakincentives.cli.run.report import Report, print_start
from weakincentives.cli.run.sandbox import (
    RunSandbox,
    resolve_engine,
    resolve_sandbox,
    resolve_variables,
)
from weakincentives.cli.run.start import JobOptions, Start, add_instruction
from weakincentives.cli.run.verification import DEFAULT_TEST_ROUNDS, TestCommand
from weakincentives.cli.run.view import JsonView, QuietView, View
from weakincentives.cli.run.workspace import (
    create_copy,
    name_copy_on_error,
    resolve_workspace,
)
from weakincentives.cli.steps import open_timeline
from weakincentives.cli.terminal import disable_echo
from weakincentives.contrib.review.records import open_files
from weakincentives.contrib.tools.dialects import DialectName
from weakincentives.contrib.tools.shell import MAX_SHELL_SECONDS
from weakincentives.runtime.session import Session

F = TypeVar("F", bound=Callable[..., Any])

_MAX_TASK_LENGTH = 1024 * 1024
_PROVIDERS = ", ".join(f"{each}:MODEL" for each in PROVIDERS)
_EPILOG = """\b
Exit codes: 0 done; 1 the run failed, changes so far are kept; 2 usage error;
3 done, changes kept for later; 4 conflict, nothing applied; 130 interrupted;
143 and 129 terminated by SIGTERM and SIGHUP.
Settings: wink.toml, overridden by WINK_MODEL, WINK_DEADLINE and so on,
overridden by these options.
"""


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """What to print, and what to do with the changes."""

    action: Action
    as_json: bool = False
    quiet: bool = False


def _run_options(command: F) -> F:
    """Add the options that `wink run` and `wink resume` share."""
    options = (
        click.option(
            "--attach",
            multiple=True,
            metavar="FILE",
            help="Send a text file or picture with the task; - is standard input; repeatable.",
        ),
        click.option(
            "--model",
            metavar="NAME",
            help=f"{_PROVIDERS}, or scripted:FILE for a script.",
        ),
        click.option(
            "--dialect",
            type=click.Choice(DIALECT_CHOICES),
            help="Tool names to offer; auto picks them by model.",
        ),
        click.option(
            "--effort",
            type=click.Choice(EFFORTS),
            help="How much the model reasons; by default the provider decides.",
        ),
        click.option(
            "--temperature",
            metavar="NUMBER",
            help="Sampling temperature; by default the provider decides.",
        ),
        click.option(
            "--max-tokens", metavar="N", help="Limit of input and output tokens, such as 200k."
        ),
        click.option("--deadline", metavar="TIME", help="Time limit, such as 90s, 10m or 1h30m."),
        click.option("--max-steps", metavar="N", help="Limit of model requests; by default 100."),
        click.option(
            "--context-window",
            metavar="N",
            help="Tokens that the model takes, such as 32k; known for common models. Before they"
            " are reached, old tool results are left out and old turns summarized.",
        ),
        click.option(
            "--sandbox",
            type=click.Choice(SANDBOX_CHOICES),
            help="Where the model's commands run; by default isolated where that works, else"
            " nowhere.",
        ),
        click.option(
            "--evaluate",
            type=click.Choice(ENGINE_CHOICES),
            is_flag=False,
            flag_value=AUTO,
            help="Let the model run Python code; optionally name the engine.",
        ),
        click.option(
            "--command-timeout",
            metavar="TIME",
            help="Time limit of each command of the model; by default 2m.",
        ),
        click.option(
            "--test-cmd",
            metavar="COMMAND",
            help="Run this when the model is done; a failure goes back to it.",
        ),
        click.option(
            "--test-rounds",
            metavar="N",
            help="How often a failure of --test-cmd goes back to the model; by default 3.",
        ),
        click.option(
            "--env",
            multiple=True,
            metavar="NAME[=VALUE]",
            help="Set a variable for the model's commands, or pass on yours; repeatable.",
        ),
        click.option(
            "--allow-host",
            multiple=True,
            metavar="HOST",
            help="Let the model's commands reach this host, such as pypi.org; repeatable.",
        ),
        click.option(
            "--digest/--no-digest",
            default=None,
            help="Start the prompt with a digest of the files (default: on).",
        ),
        click.option(
            "--project-instructions/--no-project-instructions",
            default=None,
            help="Put AGENTS.md, CLAUDE.md and the like into the prompt (default: on).",
        ),
        click.option("--base-url", metavar="URL", help="Server to use instead of the provider's."),
        click.option(
            "--api-key-env", metavar="NAME", help="Environment variable that holds the API key."
        ),
        action_options,
        click.option("--config", metavar="FILE", help="Read this file instead of wink.toml."),
        click.option("--json", "as_json", is_flag=True, help="Print JSON lines and never ask."),
        click.option("--quiet", is_flag=True, help="Print nothing during the run."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command(epilog=_EPILOG)
@click.argument("task", required=False)
@click.option(
    "--continue",
    "is_continued",
    is_flag=True,
    help="Continue the last run on the directory; TASK says what to do next, if anything.",
)
@click.option(
    "--workspace",
    type=click.Path(path_type=Path),
    default=Path(),
    metavar="DIR",
    help="Directory to copy and work on; by default the current one.",
)
@click.option(
    "--exclude", multiple=True, metavar="GLOB", help="Do not copy matching files; repeatable."
)
@click.option(
    "--dump",
    metavar="DIR",
    help="Write the session and the files at the end to DIR too; wink export does it later.",
)
@click.option("--no-dump", is_flag=True, help="Do not record the steps.")
@click.option(
    "--dump-all",
    is_flag=True,
    default=None,
    help="Record also .git, virtual environments, node_modules and ignored files.",
)
@click.option(
    "--record",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Record the conversation; scripted:FILE replays it.",
)
@_run_options
def command(
    *,
    task: str | None,
    is_continued: bool,
    attach: tuple[str, ...],
    workspace: Path,
    action: Action,
    no_dump: bool,
    record: Path | None,
    config: str | None,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Let a model work on TASK in a copy of a directory, then review the changes.

    TASK is the task in words; - reads it from standard input.
    """
    output = OutputOptions(action, as_json=as_json, quiet=quiet)
    original = resolve_workspace(workspace)
    attachments = load_attachments(attach, is_stdin_used=task == STANDARD_INPUT)
    if is_continued:
        if no_dump or options["exclude"]:
            option = "--no-dump" if no_dump else "--exclude"
            raise click.UsageError(f"{option} cannot be used with --continue; leave it out")
        found = runs.find_last_run(original)
        with open_timeline(found) as timeline:
            run = EarlierRun(found, timeline)
            instruction = None if task is None else _read_task(task)
            code = _continue_run(
                run, instruction, original, output, config, options, attachments, record
            )
        raise click.exceptions.Exit(code)
    if task is None:
        raise click.UsageError("Missing argument 'TASK'; describe what to do")
    settings = load_settings(original, file=config, environment=os.environ, options=options)

    @contextmanager
    def begin(view: View) -> Generator[Start, None, None]:
        session = Session(session_id=runs.new_session_id())
        with runs.new_run(session.session_id, original) as place:
            yield Start(create_copy(original, settings["exclude"] or (), place, view), session)

    code = execute_job(
        settings,
        _read_task(task),
        begin,
        original=original,
        output=output,
        is_recorded=not no_dump,
        record=record,
        attachments=attachments,
    )
    raise click.exceptions.Exit(code)


@click.command(epilog=_EPILOG)
@click.argument("run", shell_complete=runs.complete_run)
@click.argument("instruction", required=False)
@click.option("--at", "step", metavar="STEP", help="Continue from this step; by default the last.")
@click.option("--name", metavar="NAME", help="Name of the branch, if other steps follow already.")
@click.option(
    "--workspace",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Directory to apply changes to; by default the one that the run worked on.",
)
@_run_options
def resume(
    *,
    run: str,
    instruction: str | None,
    attach: tuple[str, ...],
    step: str | None,
    name: str | None,
    workspace: Path | None,
    action: Action,
    config: str | None,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Continue a run, or begin again at any of its steps, with its session and conversation.

    RUN is the ID of a run or its beginning, a path, or last. INSTRUCTION is what the model shall
    do next; without it, an interrupted run is continued. The run continues in its working copy;
    with --at, or if that is gone, in a new one. Model and dialect are those of the run unless you
    choose others.
    """
    output = OutputOptions(action, as_json=as_json, quiet=quiet)
    found = runs.find_run(run, "steps")
    with open_timeline(found) as timeline:
        earlier = EarlierRun(found, timeline, step=step, branch=name)
        original = earlier.find_original(workspace)
        attachments = load_attachments(attach)
        code = _continue_run(earlier, instruction, original, output, config, options, attachments)
    raise click.exceptions.Exit(code)


def _continue_run(
    run: EarlierRun,
    instruction: str | None,
    original: Path,
    output: OutputOptions,
    config: str | None,
    options: Mapping[str, object],
    attachments: Sequence[Attachment],
    record: Path | None = None,
) -> int:
    """Continue an earlier run; return the exit code."""
    if attachments and instruction is None:
        raise click.UsageError("--attach needs an instruction; say what to do with it")
    task = run.check_instruction(instruction)
    return execute_job(
        run.load_settings(original, config=config, options=options),
        task,
        lambda view: run.begin(original, instruction, view),
        original=original,
        output=output,
        record=record,
        attachments=attachments,
    )


def execute_job(
    settings: Settings,
    task: str,
    begin: Callable[[View], AbstractContextManager[Start]],
    *,
    original: Path,
    output: OutputOptions,
    is_recorded: bool = True,
    record: Path | None = None,
    attachments: Sequence[Attachment] = (),
) -> int:
    """Let a model work in a copy of `original`, as `begin` returns it; return the exit code.

    Replies of the user are further rounds in the same copy, session and conversation. Time,
    tokens and steps are counted again in each.
    """
    check_repository(output.action, original)
    cancellation = CancellationToken()
    view = _create_view(cancellation, as_json=output.as_json, quiet=output.quiet)
    with create_model(settings, os.environ, record) as adapter, ExitStack() as stack:
        dialect = choose_dialect(settings, adapter)
        options = replace(
            _job_options(task, settings, dialect, original), attachments=tuple(attachments)
        )
        check_options(adapter, options.model_options)
        with disable_echo():
            start = stack.enter_context(begin(view))
            copy = start.copy
            if is_recorded:
                options = replace(options, steps=runs.steps_path(runs.run_directory(copy.place)))
            stack.enter_context(name_copy_on_error(copy.place))
            print_start(view, copy, adapter, options)
        report = Report(view, copy, is_silent=output.as_json)
        while True:
            job = Job(options, start, adapter, view=view, cancellation=cancellation)
            with disable_echo():
                model = f"{adapter.name}:{adapter.model}"
                runs.begin_run(copy.place, task=options.task, model=model, since=start.since)
                result = job.run()
                runs.update_run(copy.place, status=result.status, answer=result.answer)
            ending = report.finish(result, output.action, start.since)
            if ending.reply is None:
                return ending.exit_code
            assert ending.state is not None
            with open_files(copy) as files:
                state = compare_copy(files, files.view(ending.state))
            options = replace(options, task=ending.reply, attachments=())
            text = "\n\n".join(filter(None, (ending.reply, state.note)))
            start = Start(
                copy,
                start.session,
                add_instruction(result.messages, text),
                result.last_step,
                instruction=text,
                since=state.snapshot,
            )
            cancellation = CancellationToken()


def _job_options(task: str, settings: Settings, dialect: DialectName, original: Path) -> JobOptions:
    sandbox = resolve_sandbox(settings["sandbox"], settings["allow_host"] or (), original)
    return JobOptions(
        task,
        dialect,
        sandbox=sandbox,
        engine=resolve_engine(settings["evaluate"]),
        max_tokens=settings["max_tokens"],
        model_options=_model_options(settings),
        env=resolve_variables(settings["env"] or (), os.environ),
        test=_test_command(settings, sandbox),
        command_seconds=settings["command_timeout"] or MAX_SHELL_SECONDS,
        seconds=settings["deadline"],
        dump=None if settings["dump"] is None else Path(settings["dump"]).expanduser().absolute(),
        dump_all=settings["dump_all"] is True,
        digest=settings["digest"] is not False,
        instructions=settings["project_instructions"] is not False,
        origin=_describe_model(settings),
    )


def _test_command(settings: Settings, sandbox: RunSandbox) -> TestCommand | None:
    line = settings["test_cmd"]
    if line is None:
        return None
    if sandbox.name is None:
        reason = f" {sandbox.reason}" if sandbox.reason else ""
        raise ConfigError(
            f"--test-cmd needs a sandbox to run in; choose one with --sandbox.{reason}"
        )
    return TestCommand(line, settings["test_rounds"] or DEFAULT_TEST_ROUNDS)


def _model_options(settings: Settings) -> RunOptions:
    return RunOptions(
        max_steps=settings["max_steps"] or RunOptions().max_steps,
        context_window=settings["context_window"],
        temperature=settings["temperature"],
        effort=settings["effort"],
    )


def _describe_model(settings: Settings) -> dict[str, object]:
    """Return the model as the user named it, and its server without credentials."""
    return {"model": settings["model"], "base_url": describe_server(settings["base_url"])}


def _read_task(argument: str) -> str:
    task = _read_stdin() if argument == STANDARD_INPUT else argument
    if not task.strip():
        raise ConfigError("The task is empty; describe what to do")
    return task


def _read_stdin() -> str:
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison] # it may be closed
        raise ConfigError("The task cannot be read; standard input is closed")
    try:
        task = sys.stdin.read(_MAX_TASK_LENGTH + 1)
    except UnicodeDecodeError as error:
        raise ConfigError(f"The task is not UTF-8: {error.reason}; convert it") from error
    if len(task) > _MAX_TASK_LENGTH:
        raise ConfigError(f"The task is longer than {_MAX_TASK_LENGTH:,} characters; shorten it")
    return task


def _create_view(cancellation: CancellationToken, *, as_json: bool, quiet: bool) -> View:
    if as_json:
        return JsonView(cancellation.cancel)
    return QuietView() if quiet else LinesView()
