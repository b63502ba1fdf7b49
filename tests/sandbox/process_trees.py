"""Commands that start processes which do not want to end, and how to find these again."""

from dataclasses import dataclass, field
from itertools import count
from os import getpid
from pathlib import Path

_numbers = count(1)

NESTED = """
mkdir up
(: > up/plain; exec sleep {mark}) &
setsid sh -c ': > up/session; exec sleep {mark}' &
setsid sh -c '(: > up/orphan; exec sleep {mark}) & exit' &
(trap '' TERM HUP INT; : > up/deaf; sleep {mark}) &
sh -c ': > up/frozen; kill -STOP $$; exec sleep {mark}' &
until [ -e up/plain -a -e up/session -a -e up/orphan -a -e up/deaf -a -e up/frozen ]
do sleep 0.01; done
echo ready; : > ready; echo ready
exec sleep {mark}
"""
"""A child, one in a session of its own, one without a parent, one that cannot be asked to end,
and one that is stopped; the last line is printed when all are there and `ready` says so."""

FLEEING = """
if [ $1 -eq 0 ]; then exec sleep {mark}; fi
setsid sh flee.sh $(($1 - 1)) &
"""
"""A process that starts the next one in another session and ends, again and again."""

BOMB = """
bomb() {{
    if [ $1 -gt 0 ]; then bomb $(($1 - 1)) & bomb $(($1 - 1)) & fi
    exec sleep {mark}
}}
: > ready; echo ready
bomb 6
"""
"""As many processes as there can be in seven generations of two."""


@dataclass(frozen=True)
class Mark:
    """A number of seconds that nobody else sleeps, to know processes by."""

    seconds: str = field(default_factory=lambda: f"86{next(_numbers):03}.{getpid()}")

    def script(self, text: str) -> list[str]:
        """Return the command that runs a script of this module."""
        return ["sh", "-c", text.format(mark=self.seconds)]

    def processes(self) -> list[str]:
        """Return the command lines of the processes that can be known by it."""
        lines = (_command_line(each) for each in Path("/proc").iterdir() if each.name.isdigit())
        return [line for line in lines if self.seconds in line]


@dataclass(frozen=True)
class TimeIsUpWith:
    """A clock that stands still until a file is there, and then is far ahead."""

    path: Path

    def __call__(self) -> float:
        return 1e5 if self.path.exists() else 0.0


def _command_line(process: Path) -> str:
    try:
        return (process / "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""
