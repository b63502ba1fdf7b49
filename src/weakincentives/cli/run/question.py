"""Questions to the user: what is typed after a question was shown, and which command it means."""

import shutil
import textwrap
from collections.abc import Iterable

import click

from weakincentives.cli.signals import TerminatedError
from weakincentives.cli.terminal import discard_typeahead, echo, read_line, read_pasted_lines


def prompt(question: str, *, default: str = "") -> str:
    """Return an answer typed after the question was shown; Abort if there is none."""
    hint = f" [{default}]" if default else ""
    while True:
        if answer := read_text(f"{question}{hint}: ") or default:
            return answer


def wrap_options(options: Iterable[str]) -> str:
    """Return the options as lines that end between words, with room for an answer."""
    width = max(20, shutil.get_terminal_size().columns - len(": x "))
    return textwrap.fill(", ".join(options), width, break_long_words=False, break_on_hyphens=False)


def find_command(answer: str, names: Iterable[str]) -> str | None:
    """Return the command that an answer is, or begins; a typo is none, and must not decide."""
    return next((name for name in names if name.startswith(answer.lower())), None)


def read_text(question: str) -> str:
    """Return what is typed after the question was shown, and what was pasted with its words.

    Raises:
        Abort: The input has ended, or Ctrl-C was pressed.
    """
    discard_typeahead()
    try:
        echo(question, newline=False)  # here: somebody may press Ctrl-C as soon as it is shown
        text = read_line()
        if len(text.split()) > 1:
            text += read_pasted_lines()
    except TerminatedError:
        raise
    except KeyboardInterrupt:
        raise click.Abort from None
    if not text:
        raise click.Abort
    return text.strip()
