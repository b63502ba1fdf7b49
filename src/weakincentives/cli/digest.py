"""`wink digest`: what an agent should know about a directory before its first step."""

import hashlib
import os
import time
from collections.abc import Mapping
from pathlib import Path

import click

from weakincentives.cli.activity import show_activity
from weakincentives.cli.state import ConfigError, parse_value
from weakincentives.cli.terminal import echo
from weakincentives.cli.units import format_count, format_duration, parse_count
from weakincentives.contrib.digest import (
    DEFAULT_DIGEST_TOKENS,
    MIN_TOKENS,
    DigestCache,
    digest_workspace,
)
from weakincentives.filesystem import HostFilesystem

_NAME_LENGTH = 32  # hexadecimal digits


@click.command()
@click.argument(
    "path", type=click.Path(exists=True, file_okay=False, path_type=Path), default=Path()
)
@click.option(
    "--tokens",
    default=str(DEFAULT_DIGEST_TOKENS),
    metavar="N",
    help=f"Maximum size in tokens, such as 8k (default: {DEFAULT_DIGEST_TOKENS}).",
)
@click.option("--focus", metavar="PATH", help="File or directory that the map starts with.")
@click.option("--refresh", is_flag=True, help="Read all files again instead of using the cache.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(*, path: Path, tokens: str, focus: str | None, refresh: bool, as_json: bool) -> None:
    """Print a digest of a directory: layout, commands, conventions and a map of the code.

    PATH is the directory (default: the current one). Needs no model and changes nothing.
    `wink run` starts its prompt with this digest.
    """
    limit = parse_value("--tokens", parse_count, tokens)
    if limit < MIN_TOKENS:
        raise ConfigError(f"--tokens must be at least {MIN_TOKENS}: {tokens!r}")
    begin = None if focus is None else _find_focus(path, focus)
    cache = open_cache(path, os.environ, is_new=refresh)
    started = time.monotonic()
    with (
        HostFilesystem(path, read_only=True) as files,
        show_activity(lambda: describe_progress(cache)),
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


def _find_focus(root: Path, focus: str) -> str:
    """Return the focus relative to the root; it may be given relative to the current directory."""
    real_root = Path(os.path.realpath(root))
    for each in (real_root / focus, Path(focus)):
        here = Path(os.path.realpath(each))
        if here.exists() and here.is_relative_to(real_root):
            return str(here.relative_to(real_root))
    raise ConfigError(f"--focus is not a path in the directory: {focus!r}")


def open_cache(
    workspace: Path, environment: Mapping[str, str], *, is_new: bool = False
) -> DigestCache:
    """Return the cache for the digests of a directory, in the user's XDG cache directory.

    A user without a home directory has a cache in memory.

    Args:
        workspace: The directory.
        environment: The environment variables.
        is_new: Drop what is cached.
    """
    directory = cache_directory(environment)
    if directory is None:
        return DigestCache()
    name = hashlib.sha256(os.fsencode(os.path.realpath(workspace))).hexdigest()[:_NAME_LENGTH]
    path = directory / name
    if is_new:
        path.unlink(missing_ok=True)
    return DigestCache(path)


def cache_directory(environment: Mapping[str, str]) -> Path | None:
    """Return the directory of cached digests; None for a user without a home directory."""
    base, home = environment.get("XDG_CACHE_HOME", ""), environment.get("HOME", "")
    if not base.startswith("/"):
        base = f"{home}/.cache"
    return Path(base) / "wink" / "digests" if base.startswith("/") else None


def describe_progress(cache: DigestCache) -> str:
    """Return how far a digest is, for a person who waits for it."""
    done = f", {format_count(cache.scans, 'file')} scanned" if cache.scans else ""
    return f"making a digest of the workspace{done}"
