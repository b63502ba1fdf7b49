"""Waits: what is being done while nothing else is printed.

On a terminal a line with a spinner appears after a moment and goes away at the end. Elsewhere one
plain line is printed if it takes long: no animation, no control characters.
"""

import sys
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from threading import Event, Lock, Thread
from typing import IO, Any

from rich.console import Console, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text
from rich.theme import Theme

from weakincentives.cli.terminal import escape_controls, is_terminal, wants_colour

THEME = Theme(
    {
        "markdown.h1": "bold underline",
        "markdown.h2": "bold underline",
        "markdown.h3": "bold",
        "markdown.code": "cyan",
        "markdown.code_block": "cyan",
        "markdown.block_quote": "dim",
        "markdown.item.bullet": "bold",
        "markdown.item.number": "bold",
        "markdown.link": "none",
        "markdown.link_url": "underline",
    }
)
"""Styles that are readable on dark and on light terminals."""
NOTICE_AFTER = 10.0
"""Seconds after which a wait is reported where there is no terminal."""
_SHOW_AFTER = 0.3  # seconds; what is shorter would only flicker
_REFRESH_RATE = 8  # per second
_PLAIN_WIDTH = 160


def create_console(stream: IO[str] | None = None, *, recorded_width: int = 0) -> Console:
    """Return a console that writes to `stream`, by default standard error.

    `recorded_width` is the width of an image of what is printed, for which nothing moves.
    """
    target = sys.stderr if stream is None else stream
    is_live = is_terminal(target) and not recorded_width
    colours = "auto" if is_live else "standard"
    return Console(
        file=target,
        force_terminal=is_live,
        color_system=colours if wants_colour(target) else None,
        width=None if is_live else recorded_width or _PLAIN_WIDTH,
        record=bool(recorded_width),
        highlight=False,
        emoji=False,
        markup=False,
        soft_wrap=not is_live,
        theme=THEME,
    )


@contextmanager
def show_activity(
    describe: str | Callable[[], str],
    *,
    console: Console | None = None,
    notice_after: float = NOTICE_AFTER,
    is_hidden: bool = False,
) -> Generator[None, None, None]:
    """Show what is being done until the context ends; nothing else may print meanwhile.

    Args:
        describe: The activity, such as `writing the dump`; a function is called again and again.
        console: Where to show it, by default on standard error.
        notice_after: Seconds after which it is reported where there is no terminal.
        is_hidden: Show nothing, for the output of programs.
    """
    if is_hidden:
        yield
        return
    target = create_console() if console is None else console
    started = time.monotonic()

    def text() -> str:
        activity = describe if isinstance(describe, str) else describe()
        return escape_controls(f"{activity}{format_wait(time.monotonic() - started)}")

    def work(finished: Event) -> None:
        if not target.is_terminal:
            if not finished.wait(notice_after):
                target.print(f"{text()} ...", soft_wrap=True)
        elif not finished.wait(_SHOW_AFTER):
            spinner = Spinner("dots", style="cyan")
            with show_live(target, lambda: render_status(spinner, text()), Lock()):
                finished.wait()

    with run_beside(work, "wink-activity"):
        yield


def format_wait(seconds: float) -> str:
    """Return how long a wait takes so far; nothing in its first second."""
    return "" if seconds < 1 else f", {int(seconds)} s"


@contextmanager
def show_live(
    console: Console, render: Callable[[], RenderableType], lock: AbstractContextManager[Any]
) -> Generator[None, None, None]:
    """Show a live region below the printed lines, which disappears at the end.

    Args:
        console: Where to show it.
        render: Returns what it contains; called again and again.
        lock: Hold it to print to the console meanwhile. A region whose height changes would else
            be erased with the wrong height, and lines above it with it.
    """
    live = Live(
        console=console,
        get_renderable=render,
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )

    def refresh(finished: Event) -> None:
        while not finished.wait(1 / _REFRESH_RATE):
            with lock:
                live.refresh()

    with live, run_beside(refresh, "wink-live"):
        yield


def render_status(spinner: Spinner, text: str) -> Table:
    """Return a status line that is cut where the terminal ends."""
    line = Table.grid(padding=(0, 1))
    line.add_column(width=1)
    line.add_column(no_wrap=True, overflow="ellipsis")
    line.add_row(spinner, Text(text, style="dim"))
    return line


@contextmanager
def run_beside(work: Callable[[Event], None], name: str) -> Generator[None, None, None]:
    """Run `work` in a thread; at the end of the block set its event, and wait for it."""
    finished = Event()
    thread = Thread(target=work, args=(finished,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()
