"""`wink replay`: run the tool calls of a recorded run again, and compare the results."""

import json
from collections.abc import Collection

import click

from weakincentives.cli.config import AUTO, NO_SANDBOX, SANDBOX_CHOICES
from weakincentives.cli.runs import LAST, complete_run, find_run
from weakincentives.cli.steps import check_steps
from weakincentives.cli.terminal import echo
from weakincentives.cli.units import format_count, pick
from weakincentives.contrib.replay import ReplayReport, replay
from weakincentives.runtime.timeline import TimelineError
from weakincentives.sandbox import SandboxUnavailableError, choose_sandbox

EXIT_DIFFERENT = 1


@click.command(
    epilog="Exit codes: 0 no difference, 1 a result differs or the recording is cut off."
)
@click.argument("run", default=LAST, shell_complete=complete_run)
@click.option(
    "--sandbox",
    type=click.Choice(SANDBOX_CHOICES),
    help="Sandbox for recorded commands (default: auto; without a working sandbox they are"
    " skipped).",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(*, run: str, sandbox: str | None, as_json: bool) -> None:
    """Re-run the recorded tool calls with the current tools, in a temporary workspace.

    RUN is a run ID or its beginning, a path, or last (the default). The model's answers come from
    the recording. Prints the first step whose output or files differ. Commands are skipped without
    a sandbox, and interrupted calls always.
    """
    found = find_run(run, "steps")
    check_steps(found)
    try:
        if sandbox is None:
            sandbox = AUTO if _can_isolate() else NO_SANDBOX
        report = replay(found.steps, sandbox=None if sandbox == NO_SANDBOX else sandbox)
    except (TimelineError, SandboxUnavailableError) as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        found = report.difference
        facts = {
            "timeline": str(report.path),
            "same": found is None and report.problem is None,
            **pick(report, "problem", "replayed", "skipped", "interrupted"),
            "difference": found and {**pick(found, "step", "title", "what"), "diff": found.text},
        }
        click.echo(json.dumps(facts))
    else:
        _print(report)
    if report.difference is not None or report.problem is not None:
        raise click.exceptions.Exit(EXIT_DIFFERENT)


def _can_isolate() -> bool:
    try:
        choose_sandbox()
    except SandboxUnavailableError:
        return False
    return True


def _print(report: ReplayReport) -> None:
    if report.difference is not None:
        echo(str(report.difference), err=False)
    calls = format_count(len(report.replayed), "tool call")
    skipped = _name_steps("not run here", set(report.skipped) - set(report.interrupted))
    skipped += _name_steps("interrupted when recorded, not run", report.interrupted)
    outcome = "all the same" if report.difference is None else "stopped at the first difference"
    if report.problem is not None and report.difference is None:
        outcome = "the same as far as they are recorded"
    echo(f"Replayed {calls}, {outcome}{skipped}.")
    if report.problem is not None:
        echo(f"wink: {report.problem}")


def _name_steps(fact: str, numbers: Collection[int]) -> str:
    if not numbers:
        return ""
    names = ", ".join(map(str, sorted(numbers)))
    return f"; {fact}: {format_count(len(numbers), 'step')} ({names})"
