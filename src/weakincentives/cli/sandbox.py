"""`wink sandbox`: see what isolates commands on this machine, and run one in it."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal

import click

from weakincentives.cli.terminal import echo
from weakincentives.cli.units import parse_duration
from weakincentives.sandbox import SandboxUnavailableError
from weakincentives.sandbox.probe import (
    AUTO,
    PROMISES,
    SANDBOXES,
    ProbeResult,
    create_sandbox,
    probe_sandboxes,
)

EXIT_SANDBOX_FAILED = 125
"""The sandbox itself failed, as `timeout(1)` and container engines report it."""


@click.group()
def command() -> None:
    """Probe the sandboxes of this machine, or run a command in one."""


@command.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def probe(*, as_json: bool) -> None:
    """Try to break out of each sandbox and print which promises hold.

    The exit code is 0 if at least one sandbox can be used.
    """
    results = probe_sandboxes()
    if as_json:
        click.echo(json.dumps([_facts(each) for each in results], indent=2))
    else:
        click.echo("\n".join(_lines(results)))
    raise click.exceptions.Exit(0 if any(each.is_available for each in results) else 1)


@command.command(context_settings={"ignore_unknown_options": True})
@click.option(
    "--sandbox",
    type=click.Choice(SANDBOXES),
    default=AUTO,
    show_default=True,
    help="Where to run it; local isolates nothing.",
)
@click.option(
    "--workspace",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path(),
    metavar="DIR",
    help="Directory that the command can change; by default the current one.",
)
@click.option("--timeout", default="30s", show_default=True, metavar="TIME", help="Time limit.")
@click.option("--stdin", is_flag=True, help="Pass standard input to the command.")
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- CMD...")
def run(*, sandbox: str, workspace: Path, timeout: str, stdin: bool, argv: tuple[str, ...]) -> None:
    """Run a command; its output and exit code are the command's.

    The exit code is 124 if it timed out, and 125 if the sandbox itself failed.
    """
    seconds = parse_duration(timeout)
    try:
        with create_sandbox(sandbox, workspace, original=workspace) as made:
            data = sys.stdin.buffer.read() if stdin else None
            done = made.exec(argv, stdin=data, timeout=seconds, max_output=0, on_output=_write)
    except SandboxUnavailableError as error:
        echo(f"wink: {error}")
        raise click.exceptions.Exit(EXIT_SANDBOX_FAILED) from error
    _write("stderr", done.err.data)  # an error that the sandbox reports for the command
    if done.timed_out:
        echo(f"wink: the command timed out after {timeout} and was stopped")
    raise click.exceptions.Exit(done.exit_code)


def _write(stream: Literal["stdout", "stderr"], data: bytes) -> None:
    target: BinaryIO = getattr(sys, stream).buffer
    target.write(data)
    target.flush()


def _facts(result: ProbeResult) -> dict[str, object]:
    return {
        "name": result.name,
        "available": result.is_available,
        "problem": result.problem or None,
        "promises": dict(result.promises),
    }


def _lines(results: tuple[ProbeResult, ...]) -> Iterator[str]:
    for result in results:
        yield f"{result.name}: {'available' if result.is_available else 'not available'}"
        if result.problem:
            yield f"  {result.problem}"
        for name, holds in result.promises.items():
            yield f"  {'ok' if holds else 'no':<3} {name}: {PROMISES[name]}"
    used = next((each.name for each in results if each.is_available), None)
    yield f"--sandbox auto uses {used}" if used else "--sandbox auto refuses to run commands here"
