"""`wink debug`: open a recorded run in the browser."""

import json
import webbrowser
from contextlib import closing, suppress

import click

from weakincentives.cli.runs import LAST, complete_run, find_run
from weakincentives.cli.steps import check_steps
from weakincentives.cli.terminal import echo
from weakincentives.debug import SnapshotStore
from weakincentives.debug.server import LOOPBACK, DebugServer, ServerAddress


@click.command(epilog="Needs the extra debug; wink doctor has the command that installs it.")
@click.argument("run", default=LAST, shell_complete=complete_run)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="Port (default: free)."
)
@click.option(
    "--host",
    default=LOOPBACK,
    metavar="ADDRESS",
    help=f"Address to listen on (default: {LOOPBACK}).",
)
@click.option("--allow-remote", is_flag=True, help="Allow connections from other machines.")
@click.option("--no-open", is_flag=True, help="Do not open a browser.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print URL and token as JSON; open no browser."
)
def command(
    *,
    run: str,
    port: int,
    host: str,
    allow_remote: bool,
    no_open: bool,
    as_json: bool,
) -> None:
    """Open a recorded run in the browser.

    RUN is a run ID or its beginning, a path, which may be that of a dump or of a directory of
    dumps, or last (the default). The page shows every step: what the model said and called, the
    files as they were, and what changed.
    """
    found = find_run(run, "steps")
    if found.place is not None:  # else it may have other formats
        check_steps(found)
    with closing(SnapshotStore(found.steps)) as store:
        server = DebugServer(store, host=host, port=port, allow_remote=allow_remote)
        with suppress(KeyboardInterrupt):
            server.serve(lambda: _announce(server.address, as_json=as_json, opens=not no_open))


def _announce(address: ServerAddress, *, as_json: bool, opens: bool) -> None:
    if as_json:
        click.echo(json.dumps({"url": address.url, "token": address.token}))
        return
    click.echo(f"Debug page: {address.url}")
    echo("Press Ctrl-C to stop.")
    if opens:
        webbrowser.open(address.url)
