"""`wink sandbox`: see what isolates commands on this machine, run one in it, and images for it."""

import json
import re
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TextIO

import click

from weakincentives.cli.config import parse_hosts
from weakincentives.cli.state import parse_value
from weakincentives.cli.terminal import echo
from weakincentives.cli.units import format_duration, parse_duration
from weakincentives.sandbox import (
    AUTO,
    BUILT_IMAGE,
    DEFAULT_IMAGE,
    PROMISES,
    SANDBOXES,
    PackageMirror,
    ProbeResult,
    PruneResult,
    SandboxUnavailableError,
    build_image,
    create_sandbox,
    probe_sandboxes,
    prune_sandboxes,
    pull_image,
)
from weakincentives.sandbox.container import DEFAULT_PACKAGES, find_mirror

EXIT_SANDBOX_FAILED = 125
"""The sandbox itself failed, as `timeout(1)` and container engines report it."""
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+")


@click.group()
def command() -> None:
    """Test the sandboxes of this machine, run a command in one, or get an image for podman."""


@command.command(short_help="Show which sandboxes work here, and what they promise.")
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


@command.command(
    context_settings={"ignore_unknown_options": True}, short_help="Run a command in a sandbox."
)
@click.option(
    "--sandbox",
    type=click.Choice(SANDBOXES),
    default=AUTO,
    help="Sandbox for the command; local isolates nothing (default: auto).",
)
@click.option(
    "--workspace",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path(),
    metavar="DIR",
    help="Directory that the command can change (default: the current one).",
)
@click.option(
    "--allow-host", multiple=True, metavar="HOST", help="Let it reach this host. Repeatable."
)
@click.option("--timeout", default="30s", metavar="TIME", help="Time limit (default: 30s).")
@click.option("--stdin", is_flag=True, help="Pass standard input to the command.")
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- CMD...")
def run(
    *,
    sandbox: str,
    workspace: Path,
    allow_host: tuple[str, ...],
    timeout: str,
    stdin: bool,
    argv: tuple[str, ...],
) -> None:
    """Run a command in a sandbox; output and exit code are those of the command.

    The exit code is 124 if it timed out, and 125 if the sandbox itself failed.
    """
    seconds = parse_value("--timeout", parse_duration, timeout)
    hosts = parse_value("--allow-host", parse_hosts, allow_host)
    _check_workspace(workspace)
    try:
        with create_sandbox(sandbox, workspace, original=workspace, allow_hosts=hosts) as made:
            data = sys.stdin.buffer.read() if stdin else None
            done = made.exec(argv, stdin=data, timeout=seconds, max_output=0, on_output=_write)
    except SandboxUnavailableError as error:
        echo(f"wink: {error}")
        raise click.exceptions.Exit(EXIT_SANDBOX_FAILED) from error
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    _write("stderr", done.err.data)  # an error that the sandbox reports for the command
    for reason in dict.fromkeys(each.reason for each in done.connections if not each.allowed):
        echo(reason)
    if done.timed_out:
        echo(f"wink: the command timed out after {format_duration(seconds * 1000)} and was stopped")
    raise click.exceptions.Exit(done.exit_code)


@command.command(short_help="Remove what killed processes have left.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def prune(*, as_json: bool) -> None:
    """Remove containers and workspaces that killed processes have left."""
    found = prune_sandboxes()
    if as_json:
        facts = {"containers": found.containers, "workspaces": found.overlays}
        click.echo(json.dumps({**facts, "problem": found.problem or None}, indent=2))
        return
    for line in _removal_lines(found):
        echo(line, err=False)


@command.command("pull-image", short_help="Get an image for podman from a registry.")
@click.argument("image", default=DEFAULT_IMAGE)
def pull(*, image: str) -> None:
    """Get an image for podman from a registry (default: one with Python 3.12)."""
    with _reported():
        echo(f"Pulled {pull_image(image, on_progress=echo)}", err=False)


@command.command("build-image", short_help="Make an image for podman from Debian packages.")
@click.option(
    "--tag",
    default=BUILT_IMAGE,
    metavar="NAME",
    help=f"Name of the image (default: {BUILT_IMAGE}).",
)
@click.option("--suite", metavar="NAME", help="Debian release (default: that of this machine).")
@click.option("--mirror", metavar="URL", help="Package mirror (default: the one that apt uses).")
@click.option(
    "--package",
    "packages",
    multiple=True,
    metavar="NAME",
    help="Add a Debian package, such as python3-pytest or gcc. Repeatable.",
)
def build(*, tag: str, suite: str | None, mirror: str | None, packages: tuple[str, ...]) -> None:
    """Make an image for podman from Debian packages, without a registry.

    The image has Python with pip and venv, and git. Needs root.
    """
    if bad := [each for each in packages if not _PACKAGE.fullmatch(each)]:
        raise click.UsageError(f"--package takes the name of a Debian package: {bad[0]!r}")
    with _reported():
        source = PackageMirror(mirror, suite) if mirror and suite else find_mirror()
        source = PackageMirror(mirror or source.url, suite or source.release)
        every = [*DEFAULT_PACKAGES, *packages]
        build_image(tag, mirror=source, packages=every, on_progress=echo)
    echo(f"Built {tag}", err=False)


@contextmanager
def _reported() -> Generator[None, None, None]:
    """Turn a failed engine into an error of the command line."""
    try:
        yield
    except SandboxUnavailableError as error:
        raise click.ClickException(str(error)) from error


def _removal_lines(found: PruneResult) -> Iterator[str]:
    for name in found.containers:
        yield f"Removed the container {name}"
    for path in found.overlays:
        yield f"Removed the workspace {path!r}"
    if found.problem:
        yield f"Containers were not looked for: {found.problem}"
    elif not found.containers and not found.overlays:
        yield "Nothing to remove"


def _check_workspace(path: Path) -> None:
    try:
        path.absolute()
    except FileNotFoundError as error:
        raise click.UsageError(
            "The current directory no longer exists; name another with --workspace"
        ) from error


def _write(stream: Literal["stdout", "stderr"], data: bytes) -> None:
    target: TextIO | None = getattr(sys, stream)
    if target is not None:  # else it is closed
        target.buffer.write(data)
        target.buffer.flush()


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
