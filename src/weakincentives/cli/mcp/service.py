"""The server behind `wink mcp`: a copy or the directory itself, recorded, until the client is gone.

In a copy the changes wait for `wink review`, as those of `wink run` do. In place, the history of
snapshots is in the state directory, and the recording has the files as they were at every step.
"""

import json
import os
import shlex
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import click
from mcp import Client
from mcp.types import CallToolResult, Implementation, TextContent

from weakincentives import __version__
from weakincentives.cli import runs
from weakincentives.cli.config import ConfigError, Settings, load_settings
from weakincentives.cli.mcp.options import HttpOptions, ServeOptions
from weakincentives.cli.run.action import Action
from weakincentives.cli.run.decision import Decision
from weakincentives.cli.run.options import (
    NO_COMMANDS,
    SHELL_LIMITS,
    RunSandbox,
    resolve_engine,
    resolve_sandbox,
    resolve_variables,
)
from weakincentives.cli.run.view import LinesView
from weakincentives.cli.run.workspace import create_copy, name_copy_on_error
from weakincentives.cli.state import calls_path, history_path, state_directory
from weakincentives.cli.terminal import describe_error, echo
from weakincentives.contrib.evaluation import create_engine
from weakincentives.contrib.review import Review, Status, WorkingCopy, remove_place
from weakincentives.contrib.tools.shell import MAX_SHELL_SECONDS, stop_processes
from weakincentives.errors import WinkError
from weakincentives.filesystem import (
    POSIX_LIMITS,
    FilesystemEvent,
    FileWritten,
    HostFilesystem,
    ReproducibleFiles,
)
from weakincentives.loopback import is_loopback
from weakincentives.mcp import McpClient, McpWorkspace, serve_stdio
from weakincentives.mcp.http import HttpServer
from weakincentives.posix import display_path
from weakincentives.runtime.session import Session, dump_session_tree
from weakincentives.runtime.timeline import SessionRecorder, steps_file
from weakincentives.sandbox import create_sandbox

_TASK = "MCP"
_MAX_CLIENTS = 5  # whose names are in the title of a run
_FIRST_STEP = 1
# a program writes whole files, unlike a model
_LIMITS = replace(POSIX_LIMITS, max_write_length=16 * 1024 * 1024)


@dataclass(frozen=True, slots=True)
class _Served:
    """The files to serve: a working copy, or the directory itself."""

    directory: Path
    filesystem: HostFilesystem
    run: Path
    """The directory of the run in which the session is recorded."""
    copy: WorkingCopy | None = None

    @property
    def review_command(self) -> str | None:
        """The command for the person who decides about the changes; None in place."""
        if self.copy is None:
            return None
        return f"wink review {shlex.quote(runs.place_id(self.copy.place))}"


def serve(options: ServeOptions, http: HttpOptions | None, *, as_json: bool) -> None:
    """Serve a directory until the client is gone, or until Ctrl-C or SIGTERM over HTTP."""
    settings = load_settings(
        None, file=options.config, environment=os.environ, options=options.settings
    )
    sandbox = NO_COMMANDS
    if not options.read_only:
        hosts = settings["allow_host"] or ()
        sandbox = resolve_sandbox(settings["sandbox"], hosts, options.directory)
    session = Session(session_id=runs.new_session_id())
    with ExitStack() as stack:
        run = stack.enter_context(runs.new_run(session.session_id, options.directory))
        place = stack.enter_context(_open_place(options, settings, run))
        recording = stack.enter_context(ExitStack())  # ends when nothing runs any more
        workspace = _create_workspace(options, settings, session, place, sandbox, stack)
        recording.enter_context(_record(options, settings, workspace, place))
        _print_start(options, place, sandbox)
        if http is None:
            serve_stdio(workspace)
        else:
            _serve_http(workspace, http, as_json=as_json)


def look_back(
    directory: Path, call: int | None, *, paths: Sequence[str] = (), as_json: bool
) -> None:
    """Print the calls that changed a directory in place, or undo one of them.

    Only what is at and below `paths` is undone, if there are any.

    Raises:
        ClickException: It cannot be undone; the message says why.
    """
    store, command = history_path(directory), f"wink mcp {shlex.quote(str(directory))}"
    with HostFilesystem(directory, git_dir=store, limits=_LIMITS) as filesystem:
        hint = f"To undo one of the calls: {command} --undo CALL"
        history = calls_path(store)
        workspace = McpWorkspace(filesystem, history_directory=history, review_hint=hint)
        try:
            name = "review" if call is None else "undo"
            arguments = {"from": "first"} if call is None else {"call": call, "paths": list(paths)}
            result = anyio.run(_call_tool, workspace, name, arguments)
        finally:
            workspace.close()
    fields: dict[str, Any] = dict(result.structured_content or {})
    text = "\n".join(each.text for each in result.content if isinstance(each, TextContent))
    if as_json:
        fields.pop("content", None)  # the same text
        click.echo(json.dumps({"ok": not result.is_error, "text": text, **fields}))
    else:
        echo(text, err=bool(result.is_error))
        if result.is_error:
            echo(f"To see the calls: {command} --calls")
        elif "call" in fields:
            echo(f"  {command} --undo {fields['call']}  to redo it")
    if result.is_error:
        raise click.exceptions.Exit(1)


async def _call_tool(
    workspace: McpWorkspace, name: str, arguments: dict[str, Any]
) -> CallToolResult:
    client = Client(
        workspace.create_server(), client_info=Implementation(name="wink", version=__version__)
    )
    async with client:
        return await client.call_tool(name, arguments)


# --- the files ---


@contextmanager
def _open_place(
    options: ServeOptions, settings: Settings, run: Path
) -> Generator[_Served, None, None]:
    if options.in_place or options.read_only:  # what changes nothing needs no copy
        _check_history(options)
        store = history_path(options.directory)
        with HostFilesystem(
            options.directory, git_dir=store, read_only=options.read_only, limits=_LIMITS
        ) as filesystem:
            runs.begin_run(run, task=_TASK, model=runs.MCP_MODEL)
            yield _Served(options.directory, filesystem, run)
        runs.update_run(run, status="done")
        return
    copy = create_copy(options.directory, settings["exclude"] or (), run, LinesView())
    runs.begin_run(run, task=_TASK, model=runs.MCP_MODEL)
    with (
        name_copy_on_error(run),
        _finish_copy(copy),
        HostFilesystem(
            copy.root, git_dir=copy.git_dir, exclusive=True, limits=_LIMITS
        ) as filesystem,
    ):
        yield _Served(options.directory, filesystem, run, copy)


def _check_history(options: ServeOptions) -> None:
    """Raise if the snapshots of a directory would be inside it, so that nothing could be undone."""
    state = Path(os.path.realpath(state_directory()))
    if not options.read_only and state.is_relative_to(options.directory):
        raise ConfigError(
            f"The state directory {str(state)!r} is inside the served directory, so undo would not"
            " work. Set XDG_STATE_HOME to a directory outside it, or omit --in-place"
        )


@contextmanager
def _finish_copy(copy: WorkingCopy) -> Generator[None, None, None]:
    """At the end remove a copy without changes; else say how to decide about them."""
    status: Status = "failed"
    try:
        yield
        status = "done"
    finally:
        runs.update_run(copy.place, status=status)
        with Review(copy) as review:
            runs.note_changes(review)
            count = len(review.diff.entries)
            outcome = Decision(review, is_silent=True).resolve(Action("keep")).outcome
        if outcome == "kept":
            paths = "1 path was" if count == 1 else f"{count:,} paths were"
            echo(
                f"{paths} changed in the copy of {display_path(str(copy.original))}; to decide:"
                f" wink review {shlex.quote(runs.place_id(copy.place))}"
            )


# --- the recording ---


@contextmanager
def _record(
    options: ServeOptions, settings: Settings, workspace: McpWorkspace, place: _Served
) -> Generator[None, None, None]:
    """Record every call, and dump the session on request; the server works without it too.

    What an earlier server left unfinished is listed first: who listens alone is told alone.
    """
    if options.no_dump:
        yield
        return
    reproducible = ReproducibleFiles(place.filesystem)

    def keep_written(event: FilesystemEvent) -> None:
        """Record what a client writes, even if it is ignored."""
        if isinstance(event, FileWritten):
            reproducible.keep(event.path)

    unsubscribe = place.filesystem.subscribe(keep_written)
    try:
        details: dict[str, Any] = {"mcp": _describe(options, place), "left_out": reproducible.paths}
        workspace.start()
        recorder = SessionRecorder(
            workspace.session,
            runs.steps_path(place.run),
            place.filesystem,
            details=details,
            leave_out=reproducible,
            base=None if place.copy is None else place.copy.base,
        )
    except (WinkError, OSError, ValueError) as error:
        echo(f"wink: the session is not recorded: {describe_error(error)}")
        yield
        return
    try:
        yield
    finally:
        unsubscribe()
        recorder.close()
        _finish_recording(recorder, workspace.session, settings["dump"], place)


def _finish_recording(
    recorder: SessionRecorder, session: Session, dump: str | None, place: _Served
) -> None:
    if recorder.problem is not None:
        echo(f"wink: {recorder.problem}")
    if recorder.last == _FIRST_STEP:  # no client called anything
        steps_file(recorder.path).unlink(missing_ok=True)
        if place.copy is None:  # else its snapshots are there
            remove_place(recorder.path)
        return
    try:
        if dump is not None:
            dump_session_tree(session, Path(dump).expanduser())
    except (WinkError, OSError, ValueError) as error:
        echo(f"wink: the dump was not written: {describe_error(error)}")
    name = shlex.quote(runs.place_id(place.run))
    echo(f"Every call: wink log {name}; in the browser: wink debug {name}")


def _describe(options: ServeOptions, place: _Served) -> dict[str, object]:
    return {
        "workspace": str(options.directory),
        "copy": None if place.copy is None else runs.copy_name(place.copy.place),
        "dialect": options.dialect,
        "read_only": options.read_only,
    }


# --- the server ---


def _create_workspace(
    options: ServeOptions,
    settings: Settings,
    session: Session,
    place: _Served,
    sandbox: RunSandbox,
    stack: ExitStack,
) -> McpWorkspace:
    made = engine = None
    if sandbox.name is not None:
        made = stack.enter_context(
            create_sandbox(
                sandbox.name,
                place.filesystem,
                env=resolve_variables(settings["env"] or (), os.environ),
                original=None if place.copy is None else options.directory,
                allow_hosts=sandbox.hosts,
                on_connection=session.dispatch,
            )
        )
        stack.callback(stop_processes, made)
    name = None if options.read_only else resolve_engine(settings["evaluate"])
    if name is not None:
        engine = create_engine(name)
        stack.callback(engine.close)
    seconds = settings["command_timeout"] or MAX_SHELL_SECONDS
    workspace = McpWorkspace(
        place.filesystem,
        session=session,
        dialect=options.dialect,
        sandbox=made,
        engine=engine,
        read_only=options.read_only,
        text_only=options.text_only,
        **_review_options(place),
        history_directory=_calls_directory(place),
        shell_limits=replace(SHELL_LIMITS, max_seconds=seconds, default_seconds=seconds),
    )
    stack.callback(workspace.close)
    return workspace


def _calls_directory(place: _Served) -> Path | None:
    """Return where calls are kept for an undo after a restart; a copy ends with its session."""
    is_in_place = place.copy is None and not place.filesystem.read_only
    return calls_path(history_path(place.directory)) if is_in_place else None


def _review_options(place: _Served) -> dict[str, Any]:
    """Return what a copy has and the directory itself does not: a name, a review, a record."""
    if place.copy is None:
        return {}
    names: list[str] = []

    def on_client(client: McpClient) -> None:
        """Give the run the names of its clients."""
        if client.name not in names and len(names) < _MAX_CLIENTS:
            names.append(client.name)
            with suppress(OSError):  # a full disk must not end the call
                runs.update_run(copy.place, task=f"{_TASK}: {', '.join(names)}")

    copy = place.copy
    hint = (
        "These changes are in a copy of the directory. The person at the computer decides about"
        f" them with this command: {place.review_command}"
    )
    return {"original": copy.original, "review_hint": hint, "on_client": on_client}


def _serve_http(workspace: McpWorkspace, http: HttpOptions, *, as_json: bool) -> None:
    try:
        server = HttpServer(
            workspace,
            host=http.host,
            port=http.port,
            token=http.token,
            allow_remote=http.allow_remote,
        )
    except OSError as error:
        raise click.ClickException(
            f"Cannot listen on {http.host}, port {http.port}: {describe_error(error)};"
            " choose another with --http [HOST:]PORT"
        ) from error
    with suppress(KeyboardInterrupt):  # SIGTERM too: that is how it ends
        server.serve(lambda: _announce(server, http, as_json=as_json))


def _announce(server: HttpServer, http: HttpOptions, *, as_json: bool) -> None:
    address = server.address
    if as_json:
        click.echo(json.dumps({"url": address.url, "token": address.token}))
        return
    if not is_loopback(address.host):
        echo(
            "warning: other machines can connect, and the token is sent unencrypted;"
            " use this only in a network that you trust"
        )
    token = address.token if http.is_new_token and http.token_file is None else "TOKEN"
    echo(f"URL: {address.url}")
    if http.token_file is not None:
        echo(f"Token: in {display_path(str(http.token_file))}")
    elif http.is_new_token:
        echo(f"Token: {token}")
    header = f"Authorization: Bearer {token}"
    entry = {"type": "http", "url": address.url, "headers": {"Authorization": f"Bearer {token}"}}
    echo(f'Claude Code: claude mcp add --transport http wink {address.url} --header "{header}"')
    echo(f"Others: {json.dumps({'mcpServers': {'wink': entry}})}")
    echo("Press Ctrl-C to stop.")


def _print_start(options: ServeOptions, place: _Served, sandbox: RunSandbox) -> None:
    """Tell the person, on standard error, which clients show in their logs."""
    what = "a copy of " if place.copy is not None else ""
    mode = ", read-only" if options.read_only else ""
    echo(f"Serving {what}{display_path(str(options.directory))} to MCP clients{mode}.")
    if str(sandbox):
        echo(str(sandbox).replace("The model", "A client").replace("model's", "client's"))
    if place.review_command is not None:
        echo(f"You decide about the changes with: {place.review_command}")
    elif not options.read_only:
        name = shlex.quote(str(options.directory))
        echo(f"To see and undo the changes: wink mcp {name} --calls")
