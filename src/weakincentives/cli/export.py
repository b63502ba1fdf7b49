"""`wink export`: a run as one file to send, as a web page, or as a session dump."""

from contextlib import closing
from pathlib import Path

import click

from weakincentives.cli.activity import show_activity
from weakincentives.cli.completion import complete_run
from weakincentives.cli.listing import shorten_home
from weakincentives.cli.runs import LAST, find_run
from weakincentives.cli.steps import open_steps
from weakincentives.cli.terminal import echo
from weakincentives.debug import SnapshotStore, export_page
from weakincentives.runtime.session import dump_session_tree
from weakincentives.runtime.timeline import SUFFIX, Timeline, export_history

_PAGE = ".html"


@click.command()
@click.argument("run", default=LAST, shell_complete=complete_run)
@click.option(
    "--to",
    "target",
    type=click.Path(path_type=Path),
    metavar="PATH",
    required=True,
    help=f"FILE{SUFFIX} for all steps, FILE{_PAGE} for a page, or a directory for a dump.",
)
@click.option("--show-secrets", is_flag=True, help=f"Do not mask keys in FILE{_PAGE}.")
def command(*, run: str, target: Path, show_secrets: bool) -> None:
    """Write a run to one file to send, or as a session dump.

    FILE.timeline has all steps: wink log, show, diff, restore, resume and debug read it. FILE.html
    is a page for any browser, in which keys are masked. A directory gets the session and the files
    at the end, ID.jsonl and ID.fs.zip. Reproducible and ignored files are in none of them unless
    they were recorded. Nothing that exists is overwritten, except an earlier dump.
    """
    if show_secrets and target.suffix != _PAGE:
        raise click.UsageError(f"--show-secrets needs --to FILE{_PAGE}; nothing else is masked")
    found = find_run(run, "steps")
    with show_activity("writing the run"):
        if target.suffix == _PAGE:
            with closing(SnapshotStore(found.steps)) as store:
                export_page(store.session(), target, show_secrets=show_secrets)
        else:
            with open_steps(found) as timeline:
                if target.suffix == SUFFIX:
                    export_history(timeline.path, target)
                else:
                    target = _write_dump(timeline, target)
    masked = (
        "; what looks like a key is masked" if target.suffix == _PAGE and not show_secrets else ""
    )
    echo(f"Wrote {shorten_home(target)}{masked}; read it before you send it.")


def _write_dump(timeline: Timeline, directory: Path) -> Path:
    session = timeline.session(timeline.last, unknown="data")
    files = timeline.files(timeline.last)
    date = timeline.step(timeline.last).created_at
    path = dump_session_tree(session, directory, files, created_at=date)
    if path is None:
        raise click.ClickException("The run has neither items nor files; nothing was written")
    return path
