"""The report of a run: what is printed at its start and at its end, and the exit code."""

import os
import re
import shlex
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from weakincentives.adapters import ProviderAdapter
from weakincentives.cli.activity import create_console
from weakincentives.cli.answers import can_ask
from weakincentives.cli.config import LOCAL_SANDBOX, NO_ENGINE, NO_SANDBOX
from weakincentives.cli.markdown import SafeMarkdown
from weakincentives.cli.run.action import (
    EXIT_FAILED,
    STANDARD_OUTPUT,
    Action,
    Resolution,
    first_line,
)
from weakincentives.cli.run.changes import show_diff
from weakincentives.cli.run.decision import Decision
from weakincentives.cli.run.job import JobResult
from weakincentives.cli.run.options import JobOptions
from weakincentives.cli.run.result import describe_traffic
from weakincentives.cli.run.view import View, describe_usage, format_tokens
from weakincentives.cli.runs import note_changes, place_id
from weakincentives.cli.signals import EXIT_SIGNAL_BASE
from weakincentives.cli.terminal import echo, escape_controls, is_terminal, shorten, wrap_words
from weakincentives.cli.units import (
    format_cost,
    format_count,
    format_duration,
    pick,
    shorten_home,
)
from weakincentives.contrib.review import Review, WorkingCopy
from weakincentives.filesystem import FilesystemSnapshot
from weakincentives.posix import display_path, display_paths

_ENVIRONMENTS = (".venv", "venv")
_CONTAINER = "podman"
_TERMINATION = frozenset({signal.SIGTERM, signal.SIGHUP})
_MAX_NAMES = 5
_MAX_LEFT_OUT = 3
_MAX_COMMAND = 160  # characters
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
_COPY_REMOVED = frozenset({"nothing", "patched", "branched", "discarded"})
_APPLIED = frozenset({"apply", "commit", "branch"})
_PATCHED = frozenset({"patched", "patched-partly"})


def print_start(
    view: View,
    copy: WorkingCopy,
    adapter: ProviderAdapter,
    options: JobOptions,
    *,
    is_announced: bool,
) -> None:
    """Print what is about to run, and where, unless the first line said it already."""
    model = f"{adapter.name}:{adapter.model}"
    facts = {
        **pick(options, "task", "dialect", "max_tokens"),
        **pick(options.model_options, "effort", "temperature"),
        "attachments": [each.name for each in options.attachments],
        "workspace": str(copy.original),
        "copy": str(copy.place),
        "model": model,
        "sandbox": options.sandbox.name or NO_SANDBOX,
        "sandbox_reason": options.sandbox.reason,
        "isolation": options.sandbox.isolation,
        "allow_host": list(options.sandbox.hosts),
        "env": sorted(options.env),
        "test_cmd": None if options.test is None else options.test.line,
        "command_timeout_seconds": options.command_seconds,
        "evaluate": options.engine or NO_ENGINE,
        "deadline_seconds": options.seconds,
        "skipped": [each.path for each in copy.skipped],
        "outward_links": list(copy.external_links),
        "warnings": list(copy_warnings(copy, options.sandbox.name)),
    }
    first = first_line(model, copy.original, options.seconds, options.model_variable)
    lines = [*([] if is_announced else [first]), *_start_lines(copy, options)]
    view.emit("started", facts, escape_controls("\n".join(lines)))


def _start_lines(copy: WorkingCopy, options: JobOptions) -> Iterator[str]:
    if str(options.sandbox):
        yield str(options.sandbox)
    if options.env and options.sandbox.name is not None:
        names = sorted(options.env)
        secrets = ", ".join(name for name in names if _SECRET_NAME.search(name))
        warning = f" {secrets}: what it runs can use this secret." if secrets else ""
        yield f"The model's commands can read {', '.join(names)} (--env).{warning}"
    if options.engine is not None:
        yield f"The model can evaluate Python code, with the engine {options.engine}."
    yield from (f"  attached: {display_path(each.name)}" for each in options.attachments)
    yield from (f"  not copied: {each}" for each in copy.skipped[:_MAX_NAMES])
    more = len(copy.skipped) - _MAX_NAMES
    if more > 0:
        yield f"  not copied: {more} more"
    for warning in copy_warnings(copy, options.sandbox.name):
        yield f"  warning: {warning}"
    if copy.external_links and options.sandbox.name == LOCAL_SANDBOX:
        # a command that writes through such a link changes files outside the copy
        yield f"  links to outside the copy: {display_paths(copy.external_links, _MAX_NAMES)}"


def copy_warnings(copy: WorkingCopy, sandbox: str | None) -> Iterator[str]:
    """Yield a sentence for each thing that commands in this sandbox cannot use as it is."""
    if sandbox is None:
        return
    for name in _ENVIRONMENTS:
        if name in copy.external_links and _is_out_of_reach(copy, name, sandbox):
            yield (
                f"{name} is a link to outside the workspace, which commands cannot use: activate"
                " the environment before you start wink"
            )
        elif sandbox == _CONTAINER and (copy.root / name / "pyvenv.cfg").is_file():
            yield (
                f"{name} is not used: commands run in a container with a Python of its own;"
                " choose --sandbox bubblewrap, or an image with what the project needs: wink"
                " sandbox pull-image NAME, then set WEAKINCENTIVES_IMAGE=NAME"
            )
    for path in copy.fixed_paths:
        directory, _, name = path.rpartition("/")
        fix = (
            "move the environment out of the workspace, and activate it before you start wink"
            if name == "conda-meta"
            else "let the model configure the build again with cmake --fresh"
        )
        yield f"{display_path(directory or '.')} was made for the original directory: {fix}"


def _is_out_of_reach(copy: WorkingCopy, name: str, sandbox: str) -> bool:
    """Return whether commands cannot use the environment that a link leads to."""
    link = copy.original / name
    target = os.path.realpath(link)
    if sandbox == LOCAL_SANDBOX and link.is_symlink() and link.readlink().is_absolute():
        return False
    is_active = any(
        Path(os.path.realpath(each)).parent == Path(target) for each in os.get_exec_path()
    )
    return sandbox == _CONTAINER or not is_active


@dataclass(frozen=True, slots=True)
class Ending:
    """The exit code of a run; with a reply of the user, the run continues instead."""

    exit_code: int
    reply: str | None = None
    state: FilesystemSnapshot | None = None
    """The files that the user has seen."""


@dataclass(frozen=True, slots=True)
class Report:
    """The end of a run: prints its result and resolves its changes."""

    view: View
    copy: WorkingCopy
    is_silent: bool
    """Whether no text is printed."""

    def finish(
        self, result: JobResult, action: Action, since: FilesystemSnapshot | None = None
    ) -> Ending:
        """Print how the run ended, and resolve the changes; the user may reply instead.

        `since` are the files when this round began; None in the first.
        """
        self._print_result(result, action)
        with Review(self.copy) as review:
            with self.view.show_activity(lambda: "comparing the files"):
                note_changes(review)
                has_changes = bool(review.diff)
            self._print_failure(result, action, has_changes=has_changes)
            wanted, action = action, self._choose_action(result, action)
            if since is not None and not self.is_silent and can_ask():
                self._show_round(review, since)
            decision = Decision(
                review,
                is_silent=self.is_silent,
                # a run that failed before it changed anything is not worth a question
                can_reply=result.status != "failed" or has_changes,
                wanted=wanted,
                is_kept=bool(result.displaced or result.saved or result.timeline_error),
            )
            resolution = decision.resolve(action)
            state = None if resolution.reply is None else review.state
        code = resolution.exit_code
        if result.status != "done":
            code = EXIT_FAILED if result.signal is None else EXIT_SIGNAL_BASE + result.signal
        if resolution.reply is None:
            self.view.emit("finished", self._describe(result, resolution, action, code))
        return Ending(code, resolution.reply, state)

    def _choose_action(self, result: JobResult, action: Action) -> Action:
        """Return what to do with the changes; those of a run that failed are not applied."""
        if result.status != "done" and action.kind in _APPLIED:
            has_failed = bool(result.tests) and not result.tests[-1].passed
            fact = "The tests fail" if has_failed else "The run did not finish"
            self._print(f"{fact}; nothing was applied.")
            return Action("keep")
        if result.signal in _TERMINATION and action.kind == "ask":
            return Action("keep")
        return action

    def _show_round(self, review: Review, since: FilesystemSnapshot) -> None:
        """Print what this round changed, if that is not everything."""
        changes = review.diff_since(since)
        if not changes:
            self._print("This round changed nothing.")
        elif str(changes) != str(review.diff):
            self._print("Changed in this round:")
            show_diff(changes)
            self._print("All changes:")

    def _print_result(self, result: JobResult, action: Action) -> None:
        if result.answer.strip() and not self.is_silent:
            self._print_answer(result, action)
        self._print(wrap_words(" · ".join(self._summarize(result))))
        for line in self._file_lines(result):
            self._print(line)

    def _summarize(self, result: JobResult) -> Iterator[str]:
        """Yield what a line says about a round, and where there is more."""
        calls, tokens = format_count(result.tool_calls, "tool call"), format_tokens(result.usage)
        totals = [format_count(result.steps, "step"), calls, tokens]
        totals += [format_cost(result.cost)] if result.cost else []
        yield ", ".join((*totals, format_duration(result.seconds * 1000)))
        if result.tests and result.error is None:
            yield f"tests: {result.tests[-1]}"
        if result.traffic:
            yield describe_traffic(result.traffic)
        if result.timeline is not None:
            yield f"wink log, debug or resume {shlex.quote(place_id(self.copy.place))}"

    def _print_failure(self, result: JobResult, action: Action, *, has_changes: bool) -> None:
        if result.status == "cancelled":
            self._print("Interrupted; changes so far:" if has_changes else "Interrupted.")
        elif result.error is not None:
            advice = f"; {result.advice}" if result.advice else ""
            is_kept = has_changes and action.kind != "discard"
            kept = "; the changes so far are kept" if is_kept else ""
            self._print(f"wink: {result.error}{advice}{kept}")

    def _print_answer(self, result: JobResult, action: Action) -> None:
        """Print the answer on standard output, unless it was seen on this terminal."""
        if self.view.shows_text and is_terminal(sys.stdout):
            self._print("")
        elif result.status == "done" and action.patch != STANDARD_OUTPUT:
            print_answer(result.answer.strip())
        elif not self.view.shows_text:
            self._print(f"\n{result.answer.strip()}\n")

    def _file_lines(self, result: JobResult) -> Iterator[str]:
        """Yield what ended with the run, and which files are where."""
        for command in result.stopped:
            yield f"Stopped in the background: {shorten(command, _MAX_COMMAND)}"
        if result.dump is not None:
            yield f"Session dump: {shorten_home(result.dump)}"
        if result.dump_error is not None:
            yield f"wink: the dump could not be written: {result.dump_error}"
        if result.timeline_error is not None:
            yield f"wink: the steps are not all recorded: {result.timeline_error}"
        if result.left_out and result.dump is not None:
            names = display_paths(sorted(result.left_out), _MAX_LEFT_OUT)
            yield f"  skipped (reproducible): {names} (--dump-all)"
        name = shlex.quote(place_id(self.copy.place))
        facts = ("Rolled back with the command of", "Saved by you, and replaced in")
        for fact, found in zip(facts, (result.displaced, result.saved), strict=True):
            for step, paths in found.items():
                yield f"{fact} step {step}: {display_paths(paths)}"
                yield f"  to get one back: wink undo {name} {step} --only PATH"

    def _describe(
        self, result: JobResult, resolution: Resolution, action: Action, code: int
    ) -> dict[str, object]:
        return {
            "status": result.status,
            "result": resolution.outcome,
            "exit_code": code,
            **pick(result, "answer", "error", "advice", "steps", "tool_calls", "digest_tokens"),
            **pick(result, "stopped", "session_id", "dump_error", "left_out", "timeline_error"),
            **describe_usage(result.usage, result.cost),
            "test_passed": result.tests[-1].passed if result.tests else None,
            "test_runs": len(result.tests),
            "seconds": round(result.seconds, 3),
            "network": list(map(asdict, result.traffic)),
            "dump": result.dump,
            **{
                name: [{"step": step, "paths": list(paths)} for step, paths in found.items()]
                for name, found in (("displaced", result.displaced), ("saved", result.saved))
            },
            "timeline": result.timeline,
            "workspace": str(self.copy.original),
            "copy": None if resolution.outcome in _COPY_REMOVED else str(self.copy.place),
            "patch": str(action.patch) if resolution.outcome in _PATCHED else None,
            **resolution.facts,
        }

    def _print(self, text: str) -> None:
        if not self.is_silent:
            echo(text)


def print_answer(text: str) -> None:
    """Print the model's answer on standard output: rendered on a terminal, else as it is."""
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison] # it may be closed
        return
    if not is_terminal(sys.stdout):
        echo(text, err=False)
        return
    console = create_console(sys.stdout)
    console.print()
    console.print(SafeMarkdown(text))
