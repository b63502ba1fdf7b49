"""Continue an earlier run: at which step, in which copy, with which settings.

Its copy is used again if it is still there. If everything in it was applied, the run continues in
a new copy of the directory as it is now. If the copy was removed, or an earlier step was chosen, a
new copy gets the files of that step. All of them are in the directory of the run.
"""

import os
import shlex
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any, cast

import click

from weakincentives.adapters import Message, SystemMessage, complete_results, load_messages
from weakincentives.cli import runs
from weakincentives.cli.config import (
    KEYS,
    SAFE_PROVIDERS,
    ConfigError,
    Setting,
    Settings,
    describe_server,
    load_settings,
    option_name,
)
from weakincentives.cli.run.options import Start, add_instruction, is_answered
from weakincentives.cli.run.view import View
from weakincentives.cli.run.workspace import (
    CopyState,
    compare_copy,
    create_copy,
    placement_error,
    resolve_workspace,
)
from weakincentives.cli.state import exclusive_lock, parse_value, state_exclusions
from weakincentives.cli.steps import BY_USER, copies_by_step, find_head, parse_step
from weakincentives.cli.terminal import shorten
from weakincentives.contrib.review import (
    CopyError,
    Review,
    RunRecord,
    WorkingCopy,
    copy_of_states,
    open_copy,
    open_files,
    read_record,
    workspace_path,
)
from weakincentives.filesystem import SkippedEntry
from weakincentives.posix import display_paths
from weakincentives.runtime.timeline import (
    Timeline,
    TimelineError,
    import_history,
)

# what a timeline may decide: it may come from somebody else, so it chooses neither a server nor
# a key, nor where commands run
_RECORDED_SETTINGS = (
    *("dialect", "max_tokens", "max_steps", "deadline", "digest", "project_instructions"),
    *("effort", "temperature", "command_timeout", "test_rounds"),
    "context_window",  # with the same model only
)
_MAX_TASK = 60  # characters
_PATIENCE = 2.0  # seconds: what a run that was killed had just started holds its lock for a moment
_INTERVAL = 0.02


class EarlierRun:
    """A recorded run at one of its steps."""

    def __init__(
        self,
        run: runs.RunFiles,
        timeline: Timeline,
        *,
        step: str | None = None,
        branch: str | None = None,
    ) -> None:
        """Look at a run, at the step that the user chose, if any.

        `branch` is the name of a branch, for the case that other steps follow already.

        Raises:
            ClickException: The run is still running, or there is no such step.
        """
        _wait_until_ended(run, timeline)
        self._run = run
        self._timeline = timeline
        self._branch = branch
        self._can_reuse = step is None
        self.step: int = (
            find_head(run, timeline)
            if step is None
            else parse_step(step, with_path=False).resolve(timeline)
        )
        lost = timeline.find_lost(self.step)
        if lost is not None:
            parent, name = timeline.step(lost).parent, shlex.quote(run.name)
            again = f"wink resume {name} --at {parent} goes on before that; " if parent else ""
            raise click.ClickException(
                f"Step {self.step} cannot be continued: its conversation is not known, because step"
                f" {lost} is damaged and lost. {again}wink review {name} shows what it has changed"
                " so far"
            )
        self.details: Mapping[str, Any] = _recorded_details(timeline, self.step)

    def find_original(self, workspace: Path | None) -> Path:
        """Return the directory to apply changes to.

        Raises:
            ConfigError: It is not recorded, or gone.
        """
        if workspace is not None:
            return resolve_workspace(workspace)
        recorded = self.details.get("workspace")
        if not isinstance(recorded, str) or not Path(recorded).is_dir():
            fact = "is not recorded" if not recorded else f"does not exist here: {recorded!r}"
            if "mcp" in self._timeline.step(1).details:
                fact = "is that of an MCP session"
            raise ConfigError(
                f"The directory of the run {fact}; name the one to apply changes to with"
                " --workspace"
            )
        return resolve_workspace(Path(recorded))

    def load_settings(
        self, original: Path, *, config: str | None, options: Mapping[str, object]
    ) -> Settings:
        """Return the settings, with those of the run where no option overrides them.

        Raises:
            ConfigError: Only the user may choose the server or the program of the recorded model.
        """
        settings = load_settings(original, file=config, environment=os.environ, options=options)
        run, source = self.details, str(self._run.steps)
        given = dict(settings.given)
        model = run.get("model")
        is_same_model = options.get("model") in (None, model)
        for key in _RECORDED_SETTINGS if is_same_model else _RECORDED_SETTINGS[:-1]:
            if options.get(key) is None and run.get(key) is not None:
                try:
                    found = parse_value(f"{source}: {key}", KEYS[key].parse, run[key])
                except ConfigError as error:
                    raise ConfigError(f"{error}; choose it with {option_name(key)}") from error
                given[key] = Setting(found, source, is_foreign=True)
        if options.get("model") is None and isinstance(model, str) and settings["model"] != model:
            url = run.get("base_url")
            is_safe = model.partition(":")[0] in SAFE_PROVIDERS
            own = describe_server(settings["base_url"])
            if not is_safe or url != own or (own is None and settings["api_key_env"]):
                server = "" if url is None else f" --base-url {url}"
                raise ConfigError(
                    f"The run used another model or server than your settings; if you trust it,"
                    f" choose it: --model {model}{server}"
                )
            given["model"] = Setting(model, source, is_foreign=True)
        return replace(settings, given=given)

    def check_instruction(self, instruction: str | None) -> str:
        """Return what the run shall do, in words.

        Raises:
            UsageError: The run had ended, and there is no instruction.
        """
        if instruction is None and is_answered(self._messages()):
            command = f'wink resume {shlex.quote(self._run.name)} "..."'
            raise click.UsageError(
                f"The run had ended at step {self.step}; say what to do next: {command}"
            )
        return instruction or str(self.details.get("task") or "continue")

    @contextmanager
    def begin(self, original: Path, instruction: str | None, view: View) -> Generator[Start]:
        """Lock the run, and continue in a working copy with the files of the step."""
        with self._open_run(original) as run:
            if self._timeline.refresh():
                raise click.ClickException(
                    f"The run {self._run.name} was continued meanwhile; try again"
                )
            copy = self._find_copy(run, original)
            if copy is not None and not _is_applied(copy):
                yield self._use_copy(copy, instruction, view)
                return
            with runs.new_copy(run, self._describe_run(original)) as place:
                if copy is not None:
                    again = create_copy(original, copy.exclude, place, view)
                    yield self._use_copy(again, instruction, view, is_new=True)
                else:
                    yield self._copy_step(original, place, instruction, view)

    @contextmanager
    def _open_run(self, original: Path) -> Generator[Path]:
        """Lock the directory of the run; a recording from elsewhere becomes a run first."""
        if self._run.place is not None:
            run = runs.run_directory(self._run.place)
            with exclusive_lock(run):
                yield run
            return
        name = runs.short_id(runs.new_session_id())
        with runs.new_run(self._timeline.header.session_id, original, name) as run:
            import_history(self._run.steps, runs.steps_path(run), workspace_path(run))
            yield run

    def _describe_run(self, original: Path) -> RunRecord:
        """Return the record of the run for a new copy."""
        header, first = self._timeline.header, _recorded_details(self._timeline, 1)
        return RunRecord(
            original=str(original),
            created_at=header.created_at,
            began_at=header.created_at,
            session_id=str(header.session_id),
            task=str(first.get("task") or ""),
            model=str(first.get("model") or ""),
        )

    # --- copies ---

    def _find_copy(self, run: Path, original: Path) -> WorkingCopy | None:
        """Return the copy that has the files of the step; None if it was removed.

        Raises:
            ClickException: It is there and cannot be used; a new one would not have its edits.
        """
        name = copies_by_step(self._timeline).get(self.step)
        if name is None or not self._can_reuse or self._run.place is None:
            return None
        place = run / name
        if not workspace_path(place).is_dir() or runs.is_incomplete(place):
            return None
        try:
            copy = open_copy(place)
        except CopyError as error:
            raise click.ClickException(
                f"{error}; its files are kept in {str(workspace_path(place))!r}. To continue with"
                f" those of the last step: wink resume {self._run.name} --at {self.step}"
            ) from error
        return copy if copy.original == original else None

    def _use_copy(
        self, copy: WorkingCopy, instruction: str | None, view: View, *, is_new: bool = False
    ) -> Start:
        """Continue with the files of a copy as they are, and say what differs from the step."""
        found = load_messages(self._timeline.messages(self.step))
        was_in_call = not is_new and len(complete_results(found)) > len(found)
        last, paths = self._timeline.files(self.step), self._timeline.entries(self.step)
        with (
            view.show_activity(lambda: "looking for changes in the copy"),
            open_files(copy) as files,  # this rolls back a call or an undo that was interrupted
        ):
            state = compare_copy(files, last, paths, was_in_call=was_in_call)
        # the model knows neither undos nor edits since its last step
        steps = map(self._timeline.step, reversed(self._timeline.ancestors(self.step)))
        by_user = takewhile(lambda each: BY_USER in each.details, steps)
        others = {path for each in by_user for path in each.paths}
        state = replace(state, edited=tuple(sorted(others.union(state.edited))))
        started = self._start(copy, state, instruction, view, is_new=is_new)
        if is_new or instruction is not None:
            return started
        # the round continues that was stopped
        return replace(started, since=read_record(copy.place).since)

    def _copy_step(self, original: Path, place: Path, instruction: str | None, view: View) -> Start:
        """Continue with the files of the step in a new copy."""
        exclude = {*map(str, self.details.get("exclude") or ()), *state_exclusions(original)}
        try:
            with view.show_activity(lambda: f"restoring the files of step {self.step}"):
                copy, skipped = copy_of_states(
                    self._timeline.files(1),
                    self._timeline.files(self.step),
                    original=original,
                    place=place,
                    exclude=tuple(sorted(exclude)),
                )
        except CopyError as error:
            raise placement_error(error, original) from error
        except TimelineError as error:
            raise click.ClickException(str(error)) from error
        return self._start(copy, None, instruction, view, is_new=True, skipped=skipped)

    def _start(
        self,
        copy: WorkingCopy,
        state: CopyState | None,
        instruction: str | None,
        view: View,
        *,
        is_new: bool,
        skipped: Sequence[SkippedEntry] = (),
    ) -> Start:
        task = self.details.get("task")
        lines = [f"continuing at step {self.step}: {shorten(str(task or ''), _MAX_TASK)}"]
        lines += [f"  not restored: {each}" for each in skipped]
        title, edited = None, () if state is None else state.edited
        if state is not None and edited:
            title = f"changed {state.author}"
            undo = f"wink undo {runs.place_id(copy.place)} {self._timeline.last + 1} --only PATH"
            lines.append(f"  kept, {title} since the last step: {display_paths(edited)}")
            lines.append(f"  to undo such a change: {undo}")
        facts = {
            "step": self.step,
            "task": task,
            "timeline": str(runs.steps_path(runs.run_directory(copy.place))),
            "is_new_copy": is_new,
            "was_in_call": state is not None and state.was_in_call,
            "edited": list(edited),
            "skipped": [each.path for each in skipped],
        }
        view.emit("resumed", facts, "\n".join(lines))
        text = "\n\n".join(filter(None, (instruction, "" if state is None else state.note)))
        return Start(
            copy,
            self._timeline.session(self.step, unknown="data"),
            add_instruction(self._messages(), text) if text else self._messages(),
            self.step,
            self._branch,
            text or None,
            title,
            None if state is None else state.snapshot,
        )

    # --- steps ---

    def _messages(self) -> tuple[Message, ...]:
        """Return the conversation at the step; every call in it has a result."""
        found = complete_results(load_messages(self._timeline.messages(self.step)))
        messages = tuple(each for each in found if not isinstance(each, SystemMessage))
        if self._awaits_prompt():  # what to do is not in them yet
            pending = self.details.get("instruction" if messages else "task")
            return add_instruction(messages, str(pending)) if pending else messages
        return messages

    def _awaits_prompt(self) -> bool:
        """Return whether a round had begun at the step whose prompt is not recorded.

        A fork, an undo and the user's edits begin with such a step too, and stand for the one
        before them.
        """
        for number in reversed(self._timeline.ancestors(self.step)):
            step = self._timeline.step(number)
            if step.kind != "start" or "run" in step.details:
                return step.kind == "start"
        return False


def _wait_until_ended(run: runs.RunFiles, timeline: Timeline) -> None:
    end = time.monotonic() + _PATIENCE
    while timeline.is_recording:
        if time.monotonic() > end:
            raise click.ClickException(
                f"The run {run.name} is still running; continue it when it has ended"
            )
        time.sleep(_INTERVAL)


def _recorded_details(timeline: Timeline, at: int) -> Mapping[str, Any]:
    """Return what the run recorded about itself, at the last beginning before the step."""
    for number in reversed(timeline.ancestors(at)):
        found: object = timeline.step(number).details.get("run")
        if isinstance(found, Mapping):
            return cast("Mapping[str, Any]", found)
    return {}


def _is_applied(copy: WorkingCopy) -> bool:
    """Return whether all changes in a copy were applied, and there are some."""
    with Review(copy) as review:
        return bool(read_record(copy.place).applied) and not review.diff
