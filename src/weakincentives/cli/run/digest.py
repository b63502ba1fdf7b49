"""Digests: what an agent should know about a directory before its first step.

`wink digest` prints one. A run computes one from the files before the first step, and keeps it in
the session.
"""

import hashlib
import os
import time
from collections.abc import Mapping
from pathlib import Path

import click

from weakincentives.cli.activity import show_activity
from weakincentives.cli.run.view import View
from weakincentives.cli.state import ConfigError, parse_value
from weakincentives.cli.terminal import describe_error, echo
from weakincentives.cli.units import format_count, format_duration, parse_count
from weakincentives.contrib.digest import (
    DEFAULT_DIGEST_TOKENS,
    MIN_TOKENS,
    DigestCache,
    Inventory,
    digest_workspace,
    estimate_tokens,
    take_inventory,
)
from weakincentives.errors import WinkError
from weakincentives.filesystem import (
    Filesystem,
    FilesystemSnapshot,
    HostFilesystem,
    time_limit,
)
from weakincentives.prompt import DIGEST_KEY, latest_workspace_digest, set_workspace_digest
from weakincentives.runtime.session import Session

_MAX_SECONDS = 60.0
_PART_OF_LIMIT = 20  # one part in so many of the run's tokens
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
    limit = _parse_tokens(tokens)
    begin = None if focus is None else _find_focus(path, focus)
    cache = open_cache(path, os.environ, is_new=refresh)
    started = time.monotonic()
    with (
        HostFilesystem(path, read_only=True) as files,
        show_activity(lambda: _describe_progress(cache)),
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


# --- the digest of a run ---


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


def prepare_digest(
    session: Session,
    filesystem: Filesystem,
    cache: DigestCache,
    view: View,
    *,
    max_tokens: int | None = None,
    inventory: Inventory | None = None,
    quote_instructions: bool = True,
) -> int | None:
    """Store the digest of a workspace in the session; return its size in tokens.

    The session of an earlier run keeps its digest, so that its prompt stays the same. If there is
    no digest, the run goes on without it, and the view says why.

    Args:
        session: The session of the run.
        filesystem: The workspace.
        cache: Facts about files from earlier digests.
        view: Shows the progress and the size.
        max_tokens: The limit of the run, of which a digest takes a small part: every request
            sends it again.
        inventory: The files of the workspace, if they were listed already.
        quote_instructions: Whether the digest quotes the files that are written for agents.
    """
    earlier = latest_workspace_digest(session, DIGEST_KEY)
    if earlier is not None:
        tokens = estimate_tokens(earlier.body)
        facts = {"tokens": tokens, "tree_hash": earlier.tree_hash, "error": None}
        view.emit("digest", facts, f"digest as before: {format_count(tokens, 'token')}")
        return tokens
    started = time.monotonic()
    try:
        with time_limit(_MAX_SECONDS), view.show_activity(lambda: _describe_progress(cache)):
            found = digest_workspace(
                filesystem,
                tokens=_budget(max_tokens),
                cache=cache,
                inventory=inventory,
                quote_instructions=quote_instructions,
            )
    except (WinkError, OSError, ValueError) as error:
        reason = describe_error(error)
        view.emit("digest", {"tokens": None, "error": reason}, f"no digest: {reason}")
        return None
    set_workspace_digest(session, DIGEST_KEY, found.text, tree_hash=found.tree_hash)
    seconds = time.monotonic() - started
    facts = {
        "tokens": found.tokens,
        "tree_hash": found.tree_hash,
        "error": None,
        "files": found.files,
        "seconds": round(seconds, 3),
        "warnings": list(found.warnings),
    }
    text = (
        f"digest of {format_count(found.files, 'file')}:"
        f" {format_count(found.tokens, 'token')}, {format_duration(seconds * 1000)}"
    )
    view.emit("digest", facts, text)
    return found.tokens


def list_files(
    filesystem: HostFilesystem,
    view: View,
    cache: DigestCache,
    state: FilesystemSnapshot | None = None,
) -> Inventory | None:
    """Return the files of a workspace; None if they cannot be listed in time.

    Args:
        filesystem: The workspace.
        view: Shows the progress.
        cache: Facts about files from earlier digests.
        state: A snapshot of the present state, if there is one.
    """
    try:
        with time_limit(_MAX_SECONDS), view.show_activity(lambda: "listing the workspace"):
            snapshot = None if state is None else filesystem.view(state)
            return take_inventory(filesystem, snapshot=snapshot, cache=cache)
    except (WinkError, OSError, ValueError):
        return None  # a digest says why


def _budget(max_tokens: int | None) -> int:
    """Return the tokens that a digest may have in a run with this limit.

    Raises:
        ValueError: They are too few for a digest.
    """
    if max_tokens is None:
        return DEFAULT_DIGEST_TOKENS
    tokens = min(DEFAULT_DIGEST_TOKENS, max_tokens // _PART_OF_LIMIT)
    if tokens < MIN_TOKENS:
        raise ValueError(f"a limit of {max_tokens:,} tokens leaves no room for it")
    return tokens


def _describe_progress(cache: DigestCache) -> str:
    """Return how far a digest is, for a person who waits for it."""
    done = f", {format_count(cache.scans, 'file')} scanned" if cache.scans else ""
    return f"making a digest of the workspace{done}"
