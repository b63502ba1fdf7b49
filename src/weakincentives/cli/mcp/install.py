"""Write the server into a client's configuration file, after showing the change."""

import difflib
import json
import os
import re
import shlex
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import click

from weakincentives.cli.answers import can_ask, confirm
from weakincentives.cli.mcp.clients import (
    DENIED_TOOLS,
    Client,
    Scope,
    ServerCommand,
    is_own_entry,
)
from weakincentives.cli.mcp.config_formats import JSON, ConfigEditError
from weakincentives.cli.terminal import (
    describe_error,
    echo,
    escape_controls,
    wants_colour,
)
from weakincentives.debug import mask_secrets
from weakincentives.posix import display_path, open_directory, read_regular, store_file, write_all

EXIT_NOT_CONFIRMED = 3
_MAX_FILE_BYTES = 16 * 1024 * 1024
_PRIVATE_FILE, _PRIVATE_DIRECTORY = 0o600, 0o700
_COLOURS = {"+": "green", "-": "red", "@": "cyan"}

_DENIED: Any = DENIED_TOOLS  # a list, unlike the entries of servers

Change: TypeAlias = Literal["add", "replace", "remove", "none"]


@dataclass(frozen=True, slots=True)
class Installation:
    """A client's configuration file, and the server in it."""

    client: Client
    scope: Scope
    name: str
    directory: Path
    """The workspace."""
    path: Path
    """The file as the client finds it."""

    @property
    def target(self) -> Path:
        """The file itself: links of dotfile managers stay."""
        return Path(os.path.realpath(self.path))

    @property
    def shown(self) -> str:
        """The path for people, with what a link leads to."""
        target = self.target
        is_link = str(target) != str(self.path.absolute())
        link = f" (a link to {display_path(str(target))})" if is_link else ""
        return f"{display_path(str(self.path))}{link}"


@dataclass(frozen=True, slots=True)
class ConfigEdit:
    """A planned change of a file; `before` is None if there is none yet."""

    installation: Installation
    change: Change
    before: bytes | None
    after: bytes

    def diff(self) -> str:
        """Return the change as a unified diff; keys of other servers are masked."""
        path = display_path(str(self.installation.path))
        lines = difflib.unified_diff(
            _lines(self.before),
            _lines(self.after),
            "/dev/null" if self.before is None else path,
            path,
        )
        text = "".join(each if each.endswith("\n") else f"{each}\n" for each in lines)
        return mask_secrets(text)  # of the lines around it


def find_installation(
    client: Client,
    scope: Scope | None,
    name: str,
    directory: Path,
    environment: Mapping[str, str],
) -> Installation:
    """Return the file of a client for the workspace.

    Raises:
        ClickException: The client has no such file, or a link leads out of the project.
    """
    chosen = client.scopes()[0] if scope is None else scope
    if chosen == "user":
        path = client.user_path(environment, Path.home())
        return Installation(client, chosen, name, directory, path)
    if client.project_path is None:
        raise click.UsageError(
            f"{client.title} has no configuration for one project; use --scope user"
        )
    found = Installation(client, chosen, name, directory, directory / client.project_path)
    return _check_inside(found, "; edit that file yourself, or use --scope user")


def plan_install(installation: Installation, command: ServerCommand) -> ConfigEdit:
    """Return the change that adds the server, or replaces an earlier entry of ours.

    Raises:
        ClickException: The file cannot be edited, or has a foreign server of this name.
    """
    client, name = installation.client, installation.name
    entry = client.entry(name, command)
    before = _read(installation)
    with _explain_refusal(installation, client.format.render(client.table, name, entry)):
        text = _decode(before)
        old = client.format.read(text, client.table).get(name)
        if old is not None and not is_own_entry(old):
            raise click.ClickException(
                f"{installation.shown} has another server with the name {name!r};"
                " choose a name with --name"
            )
        after = client.format.put(text, client.table, name, entry).encode()
    if old == entry or after == before:
        return ConfigEdit(installation, "none", before, before or b"")
    change: Change = "add" if old is None else "replace"
    return ConfigEdit(installation, change, before, after)


def plan_removal(installation: Installation) -> ConfigEdit:
    """Return the change that takes our server out.

    Raises:
        ClickException: The file cannot be edited, or the server is not ours.
    """
    client, name = installation.client, installation.name
    before = _read(installation)
    with _explain_refusal(installation, None):
        text = _decode(before)
        old = client.format.read(text, client.table).get(name)
        if old is None:
            return ConfigEdit(installation, "none", before, before or b"")
        if not is_own_entry(old):
            raise click.ClickException(
                f"The server {name!r} in {installation.shown} does not start wink;"
                " nothing was changed"
            )
        after = client.format.drop(text, client.table, name).encode()
    return ConfigEdit(installation, "remove", before, after)


def plan_rules(found: Installation, server: ConfigEdit) -> ConfigEdit | None:
    """Return the change that denies the client's own tools, or allows them again after a removal.

    They would change the directory itself, whatever the server does. The rules stay while another
    server of ours has this directory.

    Raises:
        ClickException: The file cannot be edited, or a link leads out of the project.
    """
    client = found.client
    if client.rules_path is None:
        return None
    rules = replace(found, scope="project", path=found.directory / client.rules_path)
    _check_inside(rules, "; edit that file yourself")
    before = _read(rules)
    servers = client.format.read(_decode(server.after), client.table).values()
    is_denied = any(is_own_entry(each, found.directory) for each in servers)
    paste = JSON.render("permissions", "deny", _DENIED) if is_denied else None
    with _explain_refusal(rules, paste):
        text = _decode(before)
        table = JSON.read(text, "permissions")
        denied = table.get("deny", [])
        if not isinstance(denied, list):
            raise ConfigEditError("'deny' in it is not a list")
        names = cast("list[object]", denied)
        size = len(DENIED_TOOLS)
        own = [at for at in range(len(names)) if tuple(names[at : at + size]) == DENIED_TOOLS]
        if bool(own) == is_denied:
            return ConfigEdit(rules, "none", before, before or b"")
        kept: Any = (
            [*names, *DENIED_TOOLS] if is_denied else names[: own[0]] + names[own[0] + size :]
        )
        after = (
            JSON.put(text, "permissions", "deny", kept)
            if kept
            else JSON.drop(text, "permissions", "deny")
        )
    return ConfigEdit(rules, "add" if is_denied else "remove", before, after.encode())


def _check_inside(found: Installation, advice: str) -> Installation:
    if not found.target.is_relative_to(os.path.realpath(found.directory)):
        # a repository that somebody else wrote must not decide where files are written
        raise click.ClickException(
            f"Nothing was changed: {str(found.path)!r} leads out of the project,"
            f" to {str(found.target)!r}{advice}"
        )
    return found


def write(edit: ConfigEdit) -> None:
    """Replace the file atomically; it keeps its owner and permissions.

    Raises:
        ClickException: Somebody changed the file since it was read, or it cannot be written.
    """
    installation, target = edit.installation, edit.installation.target
    if _read(installation) != edit.before:
        raise click.ClickException(
            f"{installation.shown} changed while you decided; nothing was written, try again"
        )
    is_private = installation.scope == "user" and edit.before is None
    try:
        mode = _PRIVATE_DIRECTORY if installation.scope == "user" else 0o777
        target.parent.mkdir(mode, parents=True, exist_ok=True)
        with open_directory(target.parent) as directory:
            store_file(
                directory,
                target.name,
                lambda descriptor: write_all(descriptor, edit.after),
                permissions=_PRIVATE_FILE if is_private else None,
                durable=True,
            )
    except OSError as error:
        raise click.ClickException(
            f"{installation.shown} cannot be written: {describe_error(error)}"
        ) from error


def settle(
    server: ConfigEdit, rules: ConfigEdit | None, *, only_show: bool, yes: bool, as_json: bool
) -> int:
    """Show the changes, ask, and write them; return the exit code."""
    edits = [each for each in (rules, server) if each is not None and each.change != "none"]
    if server.change == "remove":
        edits.reverse()  # the client's own tools are allowed last, and denied first
    is_wanted = bool(edits) and not only_show
    if as_json:
        is_written = is_wanted and yes
        _write_all(edits if is_written else ())
        _print_json(server, rules, is_written=is_written)
        return EXIT_NOT_CONFIRMED if is_wanted and not yes else 0
    if not edits:
        return _print_nothing_to_do(server)
    for each in edits:
        echo(f"{each.installation.client.title}: {each.installation.shown}")
        _print_diff(each.diff())
    if only_show:
        return 0
    question = f"Write this to {_name_files(edits)}?"
    if not yes and not (can_ask() and confirm(question)):
        hint = "" if can_ask() else "; --yes writes it"
        echo(f"Nothing was written{hint}.")
        return EXIT_NOT_CONFIRMED
    _write_all(edits)
    _print_result(server, edits)
    return 0


def _write_all(edits: Sequence[ConfigEdit]) -> None:
    for each in edits:
        write(each)


def _name_files(edits: Sequence[ConfigEdit]) -> str:
    return " and ".join(each.installation.shown for each in edits)


def _print_result(server: ConfigEdit, edits: Sequence[ConfigEdit]) -> None:
    found = server.installation
    if server.change == "remove":
        echo(f"Wrote {_name_files(edits)}.")
        return
    echo(f"Wrote {_name_files(edits)}. {found.client.next_step}")
    # what keeps the client from changing the directory with tools of its own
    own_tools = f"own tools change the directory without undo by wink. {found.client.own_tools}"
    echo(f"{found.client.title}'s {own_tools}")
    options = f" --scope {found.scope}" if len(found.client.scopes()) > 1 else ""
    options += f" --name {found.name}" if found.name != "wink" else ""
    directory = shlex.quote(str(found.directory))
    echo(f"To undo: wink mcp {directory} --uninstall {found.client.name}{options}")


def _print_nothing_to_do(edit: ConfigEdit) -> int:
    found = edit.installation
    is_present = edit.before is not None and found.name in found.client.format.read(
        _decode(edit.before), found.client.table
    )
    fact = "is already" if is_present else "is not"
    echo(f"The server {found.name!r} {fact} in {found.shown}; nothing to do.")
    return 0


def _print_json(edit: ConfigEdit, rules: ConfigEdit | None, *, is_written: bool) -> None:
    found = edit.installation
    data: dict[str, object] = {
        "client": found.client.name,
        "name": found.name,
        "scope": found.scope,
        "file": str(found.path),
        "change": edit.change,
        "written": is_written,
        "diff": edit.diff(),
    }
    if rules is not None:
        file = str(rules.installation.path)
        data["rules"] = {"file": file, "change": rules.change, "diff": rules.diff()}
    click.echo(json.dumps(data))


def _print_diff(text: str) -> None:
    has_colour = wants_colour(sys.stdout)
    for line in text.splitlines():
        shown = escape_controls(line)
        colour = _COLOURS.get(line[:1]) if has_colour else None
        click.echo(click.style(shown, fg=colour) if colour else shown, color=has_colour)


@contextmanager
def _explain_refusal(installation: Installation, paste: str | None) -> Generator[None, None, None]:
    """Turn the error of an editor into a sentence, with the text to paste if there is one."""
    try:
        yield
    except ConfigEditError as error:
        advice = "repair it or edit it yourself"
        if paste is not None:
            echo(f"To paste into {installation.shown}:")
            click.echo(escape_controls(paste), nl=False)
            advice = "repair it, or paste the text above"
        raise click.ClickException(
            f"{installation.shown} was not changed. {error}; {advice}"
        ) from error


def _read(installation: Installation) -> bytes | None:
    """Return the content of the file; None if it does not exist.

    Raises:
        ClickException: It cannot be read, or a link leads nowhere.
    """
    try:
        return read_regular(installation.target, _MAX_FILE_BYTES)
    except FileNotFoundError:
        path = installation.path
        broken = [each for each in (path, *path.parents) if each.is_symlink() and not each.exists()]
        if not broken:
            return None
        raise click.ClickException(
            f"{installation.shown} was not changed: the link {str(broken[0])!r} leads to nothing;"
            " remove it, or create what it leads to"
        ) from None
    except OSError as error:
        raise click.ClickException(
            f"{installation.shown} cannot be read: {describe_error(error)}; nothing was changed"
        ) from error


def _decode(content: bytes | None) -> str:
    try:
        return "" if content is None else content.decode()
    except UnicodeDecodeError as error:
        raise ConfigEditError("It is not UTF-8") from error


def _lines(content: bytes | None) -> list[str]:
    """Return the lines for a diff; `splitlines` would also split inside strings."""
    text = "" if content is None else content.decode("utf-8", "replace")
    return [each for each in re.split(r"(?<=\n)", text.replace("\r\n", "\n")) if each]
