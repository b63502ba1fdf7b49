"""`wink mcp`: serve a directory to MCP clients, or set it up in one of them.

The server itself is imported when it starts: the SDK takes most of a second to load, and nobody
waits for it who only sets up a client.
"""

import os
import re
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from weakincentives.cli.config import setting_options
from weakincentives.cli.mcp.clients import CLIENTS, server_command
from weakincentives.cli.mcp.install import (
    find_installation,
    plan_install,
    plan_removal,
    plan_rules,
    settle,
)
from weakincentives.cli.mcp.options import (
    HttpOptions,
    ServeOptions,
    check_directory,
    find_token,
    parse_address,
)
from weakincentives.cli.run.workspace import resolve_workspace
from weakincentives.cli.terminal import echo, is_terminal
from weakincentives.contrib.tools.dialects import DIALECTS
from weakincentives.extras import describe_missing

_SERVICE = "weakincentives.cli.mcp.service"
_GIVEN = "-"  # an option whose value may be left out was given without one
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_EPILOG = """\b
Needs the extra mcp; wink doctor has the command that installs it.
Set-up: wink mcp --install claude-code   (codex, cursor, vscode, goose, gemini)
Exit codes: 0 done; 1 failed; 2 usage error; 3 not confirmed, nothing written.
"""


@click.command(epilog=_EPILOG)
@click.argument(
    "directory",
    required=False,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="[DIR]",
)
@click.option(
    "--copy/--in-place",
    "copy",
    default=True,
    help="Work on a copy, for `wink review` afterwards, or on DIR itself (default: --copy).",
)
@click.option("--read-only", is_flag=True, help="Offer only tools that change nothing.")
@click.option(
    "--dialect",
    type=click.Choice(tuple(DIALECTS)),
    default="mcp",
    help="Tool names to offer (default: mcp, those of the reference filesystem server).",
)
@click.option(
    "--results",
    type=click.Choice(("auto", "text", "structured")),
    default="auto",
    help="Send results as text only, or with structured content (default: auto, by client).",
)
@setting_options("sandbox", "evaluate", "command_timeout", "env", "allow_host", "exclude")
@click.option("--dump", metavar="DIR", help="Directory for the recording of the session.")
@click.option("--no-dump", is_flag=True, help="Record nothing.")
@click.option(
    "--calls", is_flag=True, help="List the calls that changed DIR in place, and exit; see --undo."
)
@click.option(
    "--undo",
    type=click.IntRange(1),
    metavar="CALL",
    help="Undo a call listed by --calls, and exit. Later changes are kept.",
)
@click.option(
    "--only",
    multiple=True,
    metavar="PATH",
    help="With --undo, restore only this file or directory. Repeatable.",
)
@click.option("--any-directory", is_flag=True, help="Allow DIR to be your home directory or /.")
@click.option("--config", metavar="FILE", help="Read this file instead of your wink.toml.")
@click.option(
    "--http",
    is_flag=False,
    flag_value="",
    metavar="[[HOST:]PORT]",
    help="Serve over HTTP instead of standard input and output (default: on a free port).",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="File with the token for --http, created if missing (default: a new token each time).",
)
@click.option(
    "--allow-remote", is_flag=True, help="With --http, allow connections from other machines."
)
@click.option("--install", type=click.Choice(tuple(CLIENTS)), help="Set up a client, and exit.")
@click.option(
    "--uninstall", type=click.Choice(tuple(CLIENTS)), help="Undo the set-up of a client, and exit."
)
@click.option(
    "--print",
    "print_",
    is_flag=False,
    flag_value=_GIVEN,
    metavar="[CLIENT]",
    help="Print what --install or --uninstall would write, without writing it.",
)
@click.option(
    "--scope",
    type=click.Choice(("project", "user")),
    help="Whose configuration to write (default: the project's if the client has one, else yours).",
)
@click.option(
    "--name", default="wink", metavar="NAME", help="Name of the server in a client (default: wink)."
)
@click.option(
    "--own-tools",
    is_flag=True,
    help="With --in-place, let the client keep its own tools for files and commands.",
)
@click.option("--yes", is_flag=True, help="Write the configuration without asking.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON and never ask; with --http, URL and token."
)
def command(
    *,
    directory: Path | None,
    install: str | None,
    uninstall: str | None,
    print_: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Serve a directory to MCP clients. Every change can be undone.

    DIR is the directory (default: the current one). A client starts this command and speaks to
    it over standard input and output; with --http, clients connect to a URL.
    """
    if print_ not in (None, _GIVEN, *CLIENTS):
        directory, print_ = _take_directory(directory, str(print_)), _GIVEN
    if print_ in CLIENTS and not install and not uninstall:
        install = print_
    serve = _serve_options(directory, **options)
    if not serve.any_directory and not uninstall:
        check_directory(serve.directory, os.environ)
    if options["http"] is not None and (install or uninstall or print_):
        raise click.UsageError(
            "A client that is set up starts the server itself; leave out --http, or run wink mcp"
            " --http to see how clients connect to it"
        )
    if install or uninstall or print_:
        code = _set_up(
            serve, install, uninstall, only_show=bool(print_), as_json=as_json, **options
        )
        raise click.exceptions.Exit(code)
    _check_options(**options)
    if options["calls"] or options["undo"] is not None:
        _load_service().look_back(
            serve.directory, options["undo"], paths=options["only"], as_json=as_json
        )
        return
    _serve(serve, _http_options(**options), as_json=as_json)


def _take_directory(directory: Path | None, value: str) -> Path:
    """Return a directory that was taken for the value of --print."""
    if directory is not None:
        raise click.UsageError(f"--print takes a client: {value!r}; one of {', '.join(CLIENTS)}")
    return Path(value)


def _serve_options(directory: Path | None, *, copy: bool, **options: Any) -> ServeOptions:
    names = ("sandbox", "evaluate", "command_timeout", "env", "allow_host", "exclude", "dump")
    if options["exclude"] and not copy:
        raise click.UsageError("--exclude needs a copy; leave it out with --in-place")
    if options["dump"] and options["no_dump"]:
        raise click.UsageError("--dump and --no-dump exclude each other; use one")
    return ServeOptions(
        resolve_workspace(directory or Path(), "DIR"),
        in_place=not copy,
        read_only=options["read_only"],
        any_directory=options["any_directory"],
        dialect=options["dialect"],
        settings={each: options[each] for each in names},
        config=options["config"],
        no_dump=options["no_dump"],
        results=options["results"],
    )


def _http_options(*, http: str | None, **options: Any) -> HttpOptions | None:
    if http is None:
        if options["token_file"] or options["allow_remote"]:
            raise click.UsageError("--token-file and --allow-remote need --http")
        return None
    host, port = parse_address(http)
    token, is_new = find_token(options["token_file"], os.environ)
    return HttpOptions(
        host, port, token, is_new, options["token_file"], allow_remote=options["allow_remote"]
    )


def _check_options(
    *,
    scope: str | None,
    yes: bool,
    own_tools: bool,
    undo: int | None,
    only: tuple[str, ...],
    **_: object,
) -> None:
    """Raise if an option was given without the one that it belongs to."""
    if scope or yes or own_tools:
        raise click.UsageError("--scope, --own-tools and --yes need --install or --uninstall")
    if only and undo is None:
        raise click.UsageError("--only needs --undo")


def _set_up(
    serve: ServeOptions,
    install: str | None,
    uninstall: str | None,
    *,
    only_show: bool,
    as_json: bool,
    **options: Any,
) -> int:
    name = options["name"]
    if options["own_tools"] and not serve.in_place:
        raise click.UsageError("--own-tools needs --in-place: a copy would be of no use")
    if not (install or uninstall) or (install and uninstall):
        raise click.UsageError("Name one client with --install or --uninstall")
    if not _NAME.fullmatch(name):
        raise click.UsageError(f"--name takes letters, digits, - and _: {name!r}")
    client = CLIENTS[install or uninstall or ""]
    found = find_installation(client, options["scope"], name, serve.directory, os.environ)
    if uninstall:
        edit = plan_removal(found)
    else:
        edit = plan_install(found, server_command(serve.words(), os.environ))
        if find_spec("mcp") is None:
            echo(f"warning: {describe_missing('the server', 'mcp')}")
    rules = None if serve.in_place and options["own_tools"] else plan_rules(found, edit)
    return settle(edit, rules, only_show=only_show, yes=options["yes"], as_json=as_json)


def _serve(options: ServeOptions, http: HttpOptions | None, *, as_json: bool) -> None:
    if http is None and is_terminal(sys.stdin):
        echo(
            "This is an MCP server: it reads JSON messages from standard input, so that a client"
            " starts it, not a person.\n"
            f"To set up a client: wink mcp --install CLIENT, one of {', '.join(CLIENTS)}.\n"
            "To serve over HTTP: wink mcp --http. Press Ctrl-D or Ctrl-C to end."
        )
    _load_service().serve(options, http, as_json=as_json)


def _load_service() -> ModuleType:
    try:
        import_module("weakincentives.mcp")  # names the extra if the SDK is missing
        return import_module(_SERVICE)
    except ModuleNotFoundError as error:
        raise click.ClickException(str(error)) from error
