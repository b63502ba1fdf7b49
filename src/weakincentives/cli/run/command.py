"""`wink run`: a model works on a task in a copy of a directory, and the user decides.

Nothing changes the directory itself before that decision. `wink resume` continues from any step.
"""

import os
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import click

from weakincentives.adapters import CancellationToken
from weakincentives.cli import runs
from weakincentives.cli.config import ConfigError, Settings, load_settings, setting_options
from weakincentives.cli.run.action import check_repository
from weakincentives.cli.run.continuation import EarlierRun
from weakincentives.cli.run.job import Job
from weakincentives.cli.run.lines import LinesView
from weakincentives.cli.run.model import check_options, choose_dialect, create_model
from weakincentives.cli.run.options import (
    STANDARD_INPUT,
    Attachment,
    RunRequest,
    Start,
    add_instruction,
    load_attachments,
    resolve_options,
    run_options,
)
from weakincentives.cli.run.recovery import compare_copy
from weakincentives.cli.run.report import Report, print_start
from weakincentives.cli.run.view import JsonView, View
from weakincentives.cli.run.workspace import (
    create_copy,
    name_copy_on_error,
    resolve_workspace,
)
from weakincentives.cli.steps import open_timeline
from weakincentives.cli.terminal import disable_echo
from weakincentives.contrib.review.records import open_files
from weakincentives.runtime.session import Session

_MAX_TASK_LENGTH = 1024 * 1024
_EPILOG = """\b
Exit codes: 0 done; 1 the run failed, changes so far are kept; 2 usage error;
3 done, changes kept for later; 4 conflict, nothing applied; 130 interrupted;
143 and 129 terminated by SIGTERM and SIGHUP.
Settings: wink.toml, overridden by WINK_MODEL, WINK_DEADLINE and so on,
overridden by these options.
"""


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
@setting_options("exclude")
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

    TASK is the task in words; - reads it from standard input.
    """
    original = resolve_workspace(workspace)
    attachments = load_attachments(request.attach, is_stdin_used=task == STANDARD_INPUT)
    if is_continued:
        if no_dump or request.settings["exclude"]:
            option = "--no-dump" if no_dump else "--exclude"
            raise click.UsageError(f"{option} cannot be used with --continue; leave it out")
        found = runs.find_last_run(original)
        with open_timeline(found) as timeline:
            run = EarlierRun(found, timeline)
            instruction = None if task is None else _read_task(task)
            code = _continue_run(run, instruction, original, request, attachments)
        raise click.exceptions.Exit(code)
    if task is None:
        raise click.UsageError("Missing argument 'TASK'; describe what to do")
    settings = load_settings(
        original, file=request.config, environment=os.environ, options=request.settings
    )

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
        request=request,
        is_recorded=not no_dump,
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
    """Continue a run, or begin again at any of its steps, with its session and conversation.

    RUN is the ID of a run or its beginning, a path, or last. INSTRUCTION is what the model shall
    do next; without it, an interrupted run is continued. The run continues in its working copy;
    with --at, or if that is gone, in a new one. Model and dialect are those of the run unless you
    choose others.
    """
    found = runs.find_run(run, "steps")
    with open_timeline(found) as timeline:
        earlier = EarlierRun(found, timeline, step=step, branch=name)
        original = earlier.find_original(workspace)
        attachments = load_attachments(request.attach)
        code = _continue_run(earlier, instruction, original, request, attachments)
    raise click.exceptions.Exit(code)


def _continue_run(
    run: EarlierRun,
    instruction: str | None,
    original: Path,
    request: RunRequest,
    attachments: Sequence[Attachment],
) -> int:
    """Continue an earlier run; return the exit code."""
    if attachments and instruction is None:
        raise click.UsageError("--attach needs an instruction; say what to do with it")
    task = run.check_instruction(instruction)
    return execute_job(
        run.load_settings(original, config=request.config, options=request.settings),
        task,
        lambda view: run.begin(original, instruction, view),
        original=original,
        request=request,
        attachments=attachments,
    )


def execute_job(
    settings: Settings,
    task: str,
    begin: Callable[[View], AbstractContextManager[Start]],
    *,
    original: Path,
    request: RunRequest,
    is_recorded: bool = True,
    attachments: Sequence[Attachment] = (),
) -> int:
    """Let a model work in a copy of `original`, as `begin` returns it; return the exit code.

    Replies of the user are further rounds in the same copy, session and conversation. Time,
    tokens and steps are counted again in each.
    """
    check_repository(request.action, original)
    cancellation = CancellationToken()
    view = _create_view(cancellation, request)
    with create_model(settings, os.environ, request.record) as adapter, ExitStack() as stack:
        dialect = choose_dialect(settings, adapter)
        options = replace(
            resolve_options(task, settings, dialect, original), attachments=tuple(attachments)
        )
        check_options(adapter, options.model_options)
        with disable_echo():
            start = stack.enter_context(begin(view))
            copy = start.copy
            if is_recorded:
                options = replace(options, steps=runs.steps_path(runs.run_directory(copy.place)))
            stack.enter_context(name_copy_on_error(copy.place))
            print_start(view, copy, adapter, options)
        report = Report(view, copy, is_silent=request.as_json)
        while True:
            job = Job(options, start, adapter, view=view, cancellation=cancellation)
            with disable_echo():
                model = f"{adapter.name}:{adapter.model}"
                runs.begin_run(copy.place, task=options.task, model=model, since=start.since)
                result = job.run()
                runs.update_run(copy.place, status=result.status, answer=result.answer)
            ending = report.finish(result, request.action, start.since)
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


def _create_view(cancellation: CancellationToken, request: RunRequest) -> View:
    if request.as_json:
        return JsonView(cancellation.cancel)
    return View() if request.quiet else LinesView(is_verbose=request.verbose)
