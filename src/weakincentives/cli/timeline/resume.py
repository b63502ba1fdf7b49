"""`wink resume`: continue from any step of a run, with its files, session and conversation."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import click

from weakincentives.adapters import AssistantMessage, Message, SystemMessage, UserMessage
from weakincentives.adapters.messages import complete_results, load_messages
from weakincentives.cli.config import KEYS, ConfigError, Setting, Settings, load_settings
from weakincentives.cli.dumps import StepArgument, open_timeline, parse_step
from weakincentives.cli.run.action import Action
from weakincentives.cli.run.attachments import load_attachments
from weakincentives.cli.run.command import EPILOG, OutputOptions, execute_job, run_options
from weakincentives.cli.run.job import Continuation
from weakincentives.cli.run.view import View
from weakincentives.cli.run.workspace import placement_error, resolve_workspace
from weakincentives.cli.state import state_exclusions
from weakincentives.contrib.review import CopyError, WorkingCopy
from weakincentives.contrib.review.copy import copy_of_states
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
    "command_timeout",
    "test_rounds",
)
_SAFE_PROVIDERS = ("openai", "anthropic", "scripted")


@click.command(epilog=EPILOG)
@click.argument("dump")
@click.argument("instruction", required=False)
@click.option("--at", "step", metavar="STEP", help="Go on from this step; by default the last.")
@click.option("--name", metavar="NAME", help="Name of the branch, if other steps follow already.")
@click.option(
    "--workspace",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Directory to apply changes to; by default the one that the run worked on.",
)
@run_options
def command(
    *,
    dump: str,
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
    """Continue a run from any of its steps, with files, session and conversation as they were.

    DUMP is a file of the dump, a session ID or its beginning, a working copy, or last.
    INSTRUCTION is what the model shall do next; without it, an interrupted run is continued.
    Model and dialect are those of the run unless you choose others. The steps are added to the
    timeline: as a branch, if others follow already.
    """
    attachments = load_attachments(attach)
    if attachments and instruction is None:
        raise click.UsageError("--attach needs an INSTRUCTION; say what to do with it")
    with open_timeline(dump) as timeline:
        if timeline.is_recording:
            raise click.ClickException(
                f"The run is still going on: {str(timeline.path)!r}; resume it when it has ended"
            )
        at = _parse_at(step, timeline)
        run = _recorded_run(timeline, at)
        original = _find_original(workspace, run)
        settings = _merge(
            load_settings(original, file=config, environment=os.environ, options=options),
            run,
            options,
            str(timeline.path),
        )
        messages = _continue_conversation(timeline, at, instruction, run)
        continuation = Continuation(
            timeline.session(at, unknown="data"), messages, timeline.path, at, name
        )

        def create(place: Path, view: View) -> WorkingCopy:
            with view.show_activity(lambda: f"restoring the files of step {at}"):
                copy, skipped = _create_copy(timeline, at, original, place, run)
            facts = {"step": at, "skipped": [each.path for each in skipped]}
            lines = [f"continuing at step {at}", *(f"  not restored: {each}" for each in skipped)]
            view.emit("resumed", facts, "\n".join(lines))
            return copy

        code = execute_job(
            settings,
            instruction or str(run.get("task") or "continue"),
            create,
            original=original,
            output=OutputOptions(action, as_json=as_json, quiet=quiet),
            dump=timeline.path.parent,
            continuation=continuation,
            attachments=attachments,
        )
    raise click.exceptions.Exit(code)


def _parse_at(step: str | None, timeline: Timeline) -> int:
    if step is None:
        return timeline.last
    found = parse_step(step)
    if found is None or found.path is not None:
        raise click.UsageError(f"Not a step: {step!r}; a step is a number, or @NAME for a branch")
    return StepArgument(found.name).resolve(timeline)


def _recorded_run(timeline: Timeline, at: int) -> Mapping[str, Any]:
    """Return what the run recorded about itself, at the last beginning before the step."""
    for number in reversed(timeline.ancestors(at)):
        found: object = timeline.step(number).details.get("run")
        if isinstance(found, Mapping):
            return cast("Mapping[str, Any]", found)
    return {}


def _find_original(workspace: Path | None, run: Mapping[str, Any]) -> Path:
    if workspace is not None:
        return resolve_workspace(workspace)
    recorded = run.get("workspace")
    if not isinstance(recorded, str) or not Path(recorded).is_dir():
        fact = "is not recorded" if not recorded else f"does not exist here: {recorded!r}"
        raise ConfigError(
            f"The directory of the run {fact}; name the one to apply changes to with --workspace"
        )
    return resolve_workspace(Path(recorded))


def _merge(
    settings: Settings, run: Mapping[str, Any], options: Mapping[str, object], source: str
) -> Settings:
    """Return the settings, with those of the run where no option overrides them.

    Raises:
        ConfigError: Only the user may choose the server or the program of the recorded model.
    """
    given = dict(settings.given)
    for key in _RECORDED_SETTINGS:
        if options.get(key) is None and run.get(key) is not None:
            try:
                given[key] = Setting(KEYS[key].parse(run[key]), source, is_foreign=True)
            except ValueError as error:
                option = f"--{key.replace('_', '-')}"
                raise ConfigError(f"{source}: {key} {error}; choose it with {option}") from error
    model = run.get("model")
    if options.get("model") is None and isinstance(model, str) and settings["model"] != model:
        url = run.get("base_url")
        is_safe = model.partition(":")[0] in _SAFE_PROVIDERS and url is None
        if not is_safe or settings["base_url"] or settings["api_key_env"]:
            server = "" if url is None else f" --base-url {url}"
            raise ConfigError(
                f"The run used another model or server than your settings; if you trust it,"
                f" choose it: --model {model}{server}"
            )
        given["model"] = Setting(model, source, is_foreign=True)
    return replace(settings, given=given)


def _continue_conversation(
    timeline: Timeline, at: int, instruction: str | None, run: Mapping[str, Any]
) -> tuple[Message, ...]:
    """Return the conversation at a step, with what the model shall do next."""
    found = complete_results(load_messages(timeline.messages(at)))
    messages = [each for each in found if not isinstance(each, SystemMessage)]
    if instruction is not None:
        messages.append(UserMessage(instruction))
    elif not messages and run.get("task"):
        messages.append(UserMessage(str(run["task"])))
    if not messages or isinstance(messages[-1], AssistantMessage):
        raise click.UsageError(
            f"The run had ended at step {at}; say what to do next, or choose a step with --at"
        )
    return tuple(messages)


def _create_copy(
    timeline: Timeline, at: int, original: Path, place: Path, run: Mapping[str, Any]
) -> tuple[WorkingCopy, list[Any]]:
    exclude = {*map(str, run.get("exclude") or ()), *state_exclusions(original)}
    try:
        return copy_of_states(
            timeline.files(1),
            timeline.files(at),
            original=original,
            place=place,
            exclude=tuple(sorted(exclude)),
        )
    except CopyError as error:
        raise placement_error(error, original) from error
    except TimelineError as error:
        raise click.ClickException(str(error)) from error
