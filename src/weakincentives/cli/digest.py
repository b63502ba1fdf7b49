"""`wink digest`: print what an agent should know about a directory before its first step."""

import os
import time
from pathlib import Path

import click

from weakincentives.cli.run.digest import describe_progress, open_cache
from weakincentives.cli.run.lines import LinesView
from weakincentives.cli.state import ConfigError, parse_value
from weakincentives.cli.terminal import echo
from weakincentives.cli.units import format_count, format_duration, parse_count
from weakincentives.contrib.digest import (
    DEFAULT_DIGEST_TOKENS,
    MIN_TOKENS,
    digest_workspace,
)
from weakincentives.filesystem import HostFilesystem


@click.command()
@click.argument(
    "path", type=click.Path(exists=True, file_okay=False, path_type=Path), default=Path()
)
@click.option(
    "--tokens",
    default=str(DEFAULT_DIGEST_TOKENS),
    show_default=True,
    metavar="N",
    help="Maximum size in tokens, such as 8k.",
)
@click.option(
    "--focus", metavar="PATH", help="File or directory that the repository map begins with."
)
@click.option("--refresh", is_flag=True, help="Read all files again instead of using the cache.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(*, path: Path, tokens: str, focus: str | None, refresh: bool, as_json: bool) -> None:
    """Print a digest of a directory: layout, commands, conventions and a map of the code.

    PATH is the directory, by default the current one. No model is needed, and nothing in the
    directory changes. `wink run` begins its prompt with this digest.
    """
    limit = _parse_tokens(tokens)
    begin = None if focus is None else _find_focus(path, focus)
    cache = open_cache(path, os.environ, is_new=refresh)
    started = time.monotonic()
    view = LinesView()
    with (
        HostFilesystem(path, read_only=True) as files,
        view.show_activity(lambda: describe_progress(cache)),
    ):
        found = digest_workspace(files, tokens=limit, focus=begin, cache=cache)
    if as_json:
        click.echo(found.to_json())
        return
    echo(found.text, err=False, newline=False)
    duration = format_duration((time.monotonic() - started) * 1000)
    echo(
        f"{format_count(found.tokens, 'token')}, {format_count(found.files, 'file')},"
        f" {cache.scans:,} of them scanned, {duration}"
    )


def _parse_tokens(text: str) -> int:
    tokens = parse_value("--tokens", parse_count, text)
    if tokens < MIN_TOKENS:
        raise ConfigError(f"--tokens must be at least {MIN_TOKENS}: {text!r}")
    return tokens


def _find_focus(root: Path, focus: str) -> str:
    """Return the focus relative to the root; it may be given relative to the current directory."""
    real_root = Path(os.path.realpath(root))
    for each in (real_root / focus, Path(focus)):
        here = Path(os.path.realpath(each))
        if here.exists() and here.is_relative_to(real_root):
            return str(here.relative_to(real_root))
    raise ConfigError(f"--focus is not a path in the directory: {focus!r}")
