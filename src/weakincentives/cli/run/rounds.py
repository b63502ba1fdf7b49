"""The rounds of a run: a model works in a copy, and the user decides, or replies and it goes on.

`wink resume` continues from any step, and so does a reply in `wink review`.
"""

import os
import sys
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import click

from weakincentives.adapters import CancellationToken, ProviderAdapter
from weakincentives.cli import runs
from weakincentives.cli.answers import disable_echo
from weakincentives.cli.config import ConfigError, Settings, load_settings
from weakincentives.cli.run.action import Action, RunRequest
from weakincentives.cli.run.job import Job, JobResult
from weakincentives.cli.run.model import choose_dialect, load_model
from weakincentives.cli.run.options import (
    STANDARD_INPUT,
    Attachment,
    JobOptions,
    Start,
    add_instruction,
    load_attachments,
    resolve_options,
)
from weakincentives.cli.run.report import Ending, Report, print_start
from weakincentives.cli.run.resume import EarlierRun
from weakincentives.cli.run.view import JsonView, LinesView, View
from weakincentives.cli.run.workspace import (
    compare_copy,
    create_copy,
    name_copy_on_error,
    resolve_workspace,
)
from weakincentives.cli.steps import open_timeline
from weakincentives.contrib.review import CommitError, open_files, require_repository
from weakincentives.runtime.session import Session

_MAX_LENGTH = 1024 * 1024  # of a task
_Begin: TypeAlias = Callable[[View, Future[ProviderAdapter]], AbstractContextManager[Start]]


def start_run(
    task: str,
    workspace: Path,
    request: RunRequest,
    *,
    is_recorded: bool,
) -> int:
    """Let a model work on a task in a new copy of a directory; return the exit code."""
    original = resolve_workspace(workspace)
    attachments = load_attachments(request.attach, is_stdin_used=task == STANDARD_INPUT)
    settings = load_settings(
        original, file=request.config, environment=os.environ, options=request.settings
    )

    @contextmanager
    def begin(view: View, model: Future[ProviderAdapter]) -> Generator[Start]:
        session = Session(session_id=runs.new_session_id())
        with runs.new_run(session.session_id, original) as place:
            try:
                copy = create_copy(original, settings["exclude"] or (), place, view, model)
                model.result()
            except BaseException:
                runs.remove_copy(place)  # nobody has worked in it
                raise
            yield Start(copy, session)

    options = resolve_options(_read_task(task), settings, original, attachments)
    return _execute(settings, options, begin, original, request, is_recorded=is_recorded)


def continue_last(instruction: str | None, workspace: Path, request: RunRequest) -> int:
    """Continue the last run on a directory; return the exit code."""
    original = resolve_workspace(workspace)
    attachments = load_attachments(request.attach, is_stdin_used=instruction == STANDARD_INPUT)
    found = runs.find_last_run(original)
    with open_timeline(found) as timeline:
        run = EarlierRun(found, timeline)
        task = None if instruction is None else _read_task(instruction)
        return _continue_run(run, task, original, request, attachments)


def resume(
    run: str,
    instruction: str | None,
    request: RunRequest,
    *,
    step: str | None = None,
    name: str | None = None,
    workspace: Path | None = None,
) -> int:
    """Continue a run, or begin again at one of its steps; return the exit code."""
    found = runs.find_run(run, "steps")
    with open_timeline(found) as timeline:
        earlier = EarlierRun(found, timeline, step=step, branch=name)
        original = earlier.find_original(workspace)
        attachments = load_attachments(request.attach)
        return _continue_run(earlier, instruction, original, request, attachments)


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

    @contextmanager
    def begin(view: View, model: Future[ProviderAdapter]) -> Generator[Start]:
        model.result()  # before anything is changed
        with run.begin(original, instruction, view) as start:
            yield start

    settings = run.load_settings(original, config=request.config, options=request.settings)
    options = resolve_options(task, settings, original, attachments)
    return _execute(settings, options, begin, original, request)


def _execute(
    settings: Settings,
    options: JobOptions,
    begin: _Begin,
    original: Path,
    request: RunRequest,
    *,
    is_recorded: bool = True,
) -> int:
    """Let a model work in a copy of `original`; return the exit code.

    Replies of the user are further rounds, in which time, tokens and steps are counted again.
    """
    _check_repository(request.action, original)
    cancellation = CancellationToken()
    view, limits = _create_view(cancellation, request), options.model_options
    with load_model(settings, os.environ, limits, request.record) as model, ExitStack() as stack:
        with disable_echo():
            start = stack.enter_context(begin(view, model))
            copy, adapter = start.copy, model.result()
            options = replace(options, dialect=choose_dialect(settings, adapter))
            if is_recorded:
                options = replace(options, steps=runs.steps_path(runs.run_directory(copy.place)))
            stack.enter_context(name_copy_on_error(copy.place))
            is_announced = request.is_announced and start.is_new
            print_start(view, copy, adapter, options, is_announced=is_announced)
        report = Report(view, copy, is_silent=request.as_json)
        while True:
            job = Job(options, start, adapter, view=view, cancellation=cancellation)
            with disable_echo():
                name = f"{adapter.name}:{adapter.model}"
                runs.begin_run(copy.place, task=options.task, model=name, since=start.since)
                result = job.run()
                runs.update_run(copy.place, status=result.status, answer=result.answer)
            ending = report.finish(result, request.action, start.since)
            if ending.reply is None:
                return ending.exit_code
            start = _start_round(start, result, ending)
            options = replace(options, task=ending.reply, attachments=())
            cancellation = CancellationToken()


def _start_round(last: Start, result: JobResult, ending: Ending) -> Start:
    """Return how the next round begins, with the user's reply and what changed since it."""
    assert ending.state is not None
    with open_files(last.copy) as files:
        state = compare_copy(files, files.view(ending.state))
    text = "\n\n".join(filter(None, (ending.reply, state.note)))
    return Start(
        last.copy,
        last.session,
        add_instruction(result.messages, text),
        result.last_step,
        instruction=text,
        since=state.snapshot,
    )


def _read_task(task: str) -> str:
    if task == STANDARD_INPUT:
        if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison] # it may be closed
            raise ConfigError("The task cannot be read; standard input is closed")
        try:
            task = sys.stdin.read(_MAX_LENGTH + 1)
        except UnicodeDecodeError as error:
            raise ConfigError(f"The task is not UTF-8: {error.reason}; convert it") from error
        if len(task) > _MAX_LENGTH:
            raise ConfigError(f"The task is longer than {_MAX_LENGTH:,} characters; shorten it")
    if not task.strip():
        raise ConfigError("The task is empty; describe what to do")
    return task


def _create_view(cancellation: CancellationToken, request: RunRequest) -> View:
    if request.as_json:
        return JsonView(cancellation.cancel)
    return View() if request.quiet else LinesView(is_verbose=request.verbose)


def _check_repository(action: Action, original: Path) -> None:
    """Raise ConfigError before the run if its changes could not be committed after it."""
    if action.kind in {"commit", "branch"}:
        try:
            require_repository(original, action.branch)
        except CommitError as error:
            raise ConfigError(f"{error}; nothing was run") from error
