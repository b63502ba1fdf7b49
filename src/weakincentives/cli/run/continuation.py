"""Going on with an earlier run: which one, at which step, in which copy, with which settings.

Its copy is used again if it is still there. If everything in it was applied, the run goes on in a
new copy of the directory as it is now. If the copy is gone, or an earlier step was chosen, a new
copy gets the files of that step.
"""

import os
import shlex
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import click

from weakincentives.adapters import Message, SystemMessage
from weakincentives.adapters.messages import complete_results, load_messages
from weakincentives.cli.config import (
    KEYS,
    ConfigError,
    Setting,
    Settings,
    describe_server,
    load_settings,
)
from weakincentives.cli.dumps import StepArgument, dump_id, find_linked_timeline, parse_step
from weakincentives.cli.run.recovery import CopyState, list_names, recover_copy
from weakincentives.cli.run.start import Continuation, Start, add_instruction, is_answered
from weakincentives.cli.run.view import View
from weakincentives.cli.run.workspace import create_copy, placement_error, resolve_workspace
from weakincentives.cli.runs import read_run
from weakincentives.cli.state import exclusive_lock, find_places, new_place, state_exclusions
from weakincentives.cli.terminal import shorten
from weakincentives.contrib.review import CopyError, Review, WorkingCopy, open_copy
from weakincentives.contrib.review.copy import copy_of_states
from weakincentives.contrib.review.records import read_record
from weakincentives.filesystem import SkippedEntry
from weakincentives.runtime.timeline import Timeline, TimelineError

# what a timeline may decide: it may come from somebody else, so it chooses neither a server nor
# a key, nor where commands run
_RECORDED_SETTINGS = (
    "dialect",
    "max_tokens",
    "max_steps",
    "deadline",
    "digest",
    "project_instructions",
    "effort",
    "temperature",
    "context_window",
    "command_timeout",
    "test_rounds",
)
_SAFE_PROVIDERS = ("openai", "anthropic", "scripted")
_MAX_TASK = 60  # characters


class EarlierRun:
    """A recorded run at one of its steps."""

    def __init__(
        self,
        timeline: Timeline,
        *,
        step: str | None = None,
        place: Path | None = None,
        branch: str | None = None,
    ) -> None:
        """Look at a run.

        Args:
            timeline: Its recording.
            step: The step that the user chose, if any.
            place: The working copy that the user named, if any.
            branch: A name for the branch, if other steps follow already.

        Raises:
            ClickException: The run is still going on, or there is no such step.
        """
        if timeline.is_recording:
            raise click.ClickException(
                f"The run is still going on: {str(timeline.path)!r}; resume it when it has ended"
            )
        self._timeline = timeline
        self._branch = branch
        self._can_reuse = step is None
        self._places = _places_by_step(timeline)
        self.step: int = self._find_step(step, place)
        self.details: Mapping[str, Any] = _recorded_details(timeline, self.step)

    @property
    def timeline(self) -> Path:
        """The recording."""
        return self._timeline.path

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
        run, source = self.details, str(self.timeline)
        given = dict(settings.given)
        model = run.get("model")
        is_same_model = options.get("model") in (None, model)
        for key in _RECORDED_SETTINGS:
            if key == "context_window" and not is_same_model:
                continue
            if options.get(key) is None and run.get(key) is not None:
                try:
                    given[key] = Setting(KEYS[key].parse(run[key]), source, is_foreign=True)
                except ValueError as error:
                    option = f"--{key.replace('_', '-')}"
                    raise ConfigError(
                        f"{source}: {key} {error}; choose it with {option}"
                    ) from error
        if options.get("model") is None and isinstance(model, str) and settings["model"] != model:
            url = run.get("base_url")
            is_safe = model.partition(":")[0] in _SAFE_PROVIDERS
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
        messages = self._messages()
        if instruction is None and is_answered(messages):
            command = f'wink resume {shlex.quote(dump_id(self.timeline))} "..."'
            raise click.UsageError(
                f"The run had ended at step {self.step}; say what to do next: {command}"
            )
        return instruction or str(self.details.get("task") or "continue")

    @contextmanager
    def begin(
        self, original: Path, instruction: str | None, view: View
    ) -> Generator[Start, None, None]:
        """Lock a working copy with the files of the step, and go on in it."""
        copy = self._find_copy(original)
        if copy is not None:
            with exclusive_lock(copy.place):
                self._check_unchanged()
                if not _is_applied(copy):
                    yield self._reuse_copy(copy, instruction, view)
                    return
        session = self._timeline.session(self.step, unknown="data")
        with new_place(session.session_id) as place:
            if copy is not None:
                yield self._copy_again(copy, place, instruction, view)
            else:
                yield self._copy_step(original, place, instruction, view)

    # --- copies ---

    def _find_copy(self, original: Path) -> WorkingCopy | None:
        """Return the copy that has the files of the step, if it is still there and ours."""
        recorded = self._places.get(self.step)
        place = next((each for each in find_places() if str(each) == recorded), None)
        if place is None or not self._can_reuse:
            return None
        if find_linked_timeline(place) != Path(os.path.realpath(self.timeline)):
            return None
        try:
            copy = open_copy(place)
        except CopyError:  # the run was killed while it made or removed the copy
            return None
        return copy if copy.original == original else None

    def _check_unchanged(self) -> None:
        if self._timeline.refresh():
            raise click.ClickException(
                f"The run went on meanwhile: {str(self.timeline)!r}; try again"
            )

    def _reuse_copy(self, copy: WorkingCopy, instruction: str | None, view: View) -> Start:
        found = load_messages(self._timeline.messages(self.step))
        was_in_call = len(complete_results(found)) > len(found)
        state = self._recover(copy, view, was_in_call=was_in_call)
        started = self._start(copy, state, instruction, view)
        if instruction is not None:
            return started
        record = read_run(copy.place)  # the round goes on in which the run was stopped
        return replace(started, since=None if record is None else record.since)

    def _recover(self, copy: WorkingCopy, view: View, *, was_in_call: bool) -> CopyState:
        files, paths = self._timeline.files(self.step), self._timeline.entries(self.step)
        with view.show_activity(lambda: "looking for changes in the copy"):
            return recover_copy(copy, files, paths, was_in_call=was_in_call)

    def _copy_again(
        self, before: WorkingCopy, place: Path, instruction: str | None, view: View
    ) -> Start:
        copy = create_copy(before.original, before.exclude, place, view)
        state = self._recover(copy, view, was_in_call=False)
        return self._start(copy, state, instruction, view, is_new=True)

    def _copy_step(self, original: Path, place: Path, instruction: str | None, view: View) -> Start:
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
        is_new: bool = False,
        skipped: list[SkippedEntry] | None = None,
    ) -> Start:
        edited, undone = ((), ()) if state is None else (state.edited, state.undone)
        task = shorten(str(self.details.get("task") or ""), _MAX_TASK)
        lines = [f"continuing at step {self.step}: {task}"]
        lines += [f"  not restored: {each}" for each in skipped or ()]
        if undone:
            lines.append(f"  undone, because the call did not finish: {list_names(undone)}")
        if edited:
            lines.append(f"  changed since the last step: {list_names(edited)}")
        facts = {
            "step": self.step,
            "task": self.details.get("task"),
            "timeline": str(self.timeline),
            "is_new_copy": is_new,
            "edited": list(edited),
            "undone": list(undone),
            "skipped": [each.path for each in skipped or ()],
        }
        view.emit("resumed", facts, "\n".join(lines))
        text = "\n\n".join(filter(None, (instruction, "" if state is None else state.note)))
        messages = self._messages()
        session = self._timeline.session(self.step, unknown="data")
        continuation = Continuation(
            session,
            add_instruction(messages, text) if text else messages,
            self.timeline,
            self.step,
            self._branch,
            instruction=text or None,
        )
        return Start(copy, session, continuation, None if state is None else state.snapshot)

    # --- steps ---

    def _find_step(self, step: str | None, place: Path | None) -> int:
        if step is not None:
            found = parse_step(step)
            if found is None or found.path is not None:
                raise click.UsageError(
                    f"Not a step: {step!r}; a step is a number, or @NAME for a branch"
                )
            return StepArgument(found.name).resolve(self._timeline)
        steps = [number for number, each in self._places.items() if each == str(place)]
        return max(steps, default=self._timeline.last)

    def _messages(self) -> tuple[Message, ...]:
        """Return the conversation at the step; every call in it has a result."""
        found = complete_results(load_messages(self._timeline.messages(self.step)))
        messages = tuple(each for each in found if not isinstance(each, SystemMessage))
        if self._timeline.step(self.step).kind == "start":  # what to do is not in them yet
            pending = self.details.get("instruction" if messages else "task")
            return add_instruction(messages, str(pending)) if pending else messages
        return messages


def _places_by_step(timeline: Timeline) -> dict[int, str | None]:
    """Return the working copy in which each step was recorded."""
    found: dict[int, str | None] = {}
    for step in timeline.steps:
        run: object = step.details.get("run")
        above = None if step.parent is None else found[step.parent]
        if isinstance(run, Mapping):
            above = cast("Mapping[str, Any]", run).get("copy")
        found[step.number] = above
    return found


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
