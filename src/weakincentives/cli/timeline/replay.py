"""`wink replay`: run the tool calls of a recorded run again, and compare the results."""

import json

import click

from weakincentives.cli.config import AUTO, NO_SANDBOX, SANDBOX_CHOICES
from weakincentives.cli.runs import LAST, complete_run, find_run
from weakincentives.cli.steps import check_steps
from weakincentives.cli.terminal import echo
from weakincentives.cli.units import format_count
from weakincentives.contrib.replay import ReplayReport, replay
from weakincentives.runtime.timeline import TimelineError
from weakincentives.sandbox import SandboxUnavailableError, choose_sandbox

EXIT_DIFFERENT = 1


@click.command(
    epilog="Exit codes: 0 all is the same, 1 a result differs or the recording is cut off."
)
@click.argument("run", default=LAST, shell_complete=complete_run)
@click.option(
    "--sandbox",
    type=click.Choice(SANDBOX_CHOICES),
    help="Where recorded commands run again; by default isolated where that works, else nowhere.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(*, run: str, sandbox: str | None, as_json: bool) -> None:
    """Run the recorded tool calls again, with the tools of today, in a temporary workspace.

    The answers of the model are those of the recording. The first result that differs is
    printed with its step: the text that the model gets, or the files. Commands are skipped
    where nothing isolates them.
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
        click.echo(json.dumps(_describe(report)))
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


def _describe(report: ReplayReport) -> dict[str, object]:
    found = report.difference
    difference = found and {
        "step": found.step,
        "title": found.title,
        "what": found.what,
        "diff": found.text,
    }
    return {
        "timeline": str(report.path),
        "same": found is None and report.problem is None,
        "problem": report.problem,
        "replayed": list(report.replayed),
        "skipped": list(report.skipped),
        "difference": difference,
    }


def _print(report: ReplayReport) -> None:
    if report.difference is not None:
        echo(str(report.difference), err=False)
    calls = format_count(len(report.replayed), "tool call")
    skipped = ""
    if report.skipped:
        numbers = ", ".join(map(str, report.skipped))
        skipped = f"; not run here: {format_count(len(report.skipped), 'step')} ({numbers})"
    outcome = "all the same" if report.difference is None else "stopped at the first difference"
    if report.problem is not None and report.difference is None:
        outcome = "the same as far as they are recorded"
    echo(f"Replayed {calls}, {outcome}{skipped}.")
    if report.problem is not None:
        echo(f"wink: {report.problem}")
