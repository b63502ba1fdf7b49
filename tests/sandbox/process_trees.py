"""Commands that start processes which do not want to end, and how to find these again."""

import os
import select
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

_numbers = count(1)
_PATIENCE = 60  # seconds that a killed process has to end, on a machine that is busy

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

    seconds: str = field(default_factory=lambda: f"86{next(_numbers):03}.{os.getpid()}")

    def script(self, text: str) -> list[str]:
        """Return the command that runs a script of this module."""
        return ["sh", "-c", text.format(mark=self.seconds)]

    def processes(self) -> list[str]:
        """Return the command lines of the processes that can be known by it."""
        return list(self._found().values())

    def wait_for_killed(self) -> None:
        """Wait for the end of processes that were killed; one that was not stays for long."""
        for pid in self._found():
            with suppress(ProcessLookupError):
                descriptor = os.pidfd_open(pid)
                select.select([descriptor], [], [], _PATIENCE)
                os.close(descriptor)

    def _found(self) -> dict[int, str]:
        numbers = [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()]
        lines = {number: _command_line(number) for number in numbers}
        return {number: line for number, line in lines.items() if self.seconds in line}


@dataclass(frozen=True)
class TimeIsUpWith:
    """A clock that stands still until a file is there, and then is far ahead."""

    path: Path

    def __call__(self) -> float:
        return 1e5 if self.path.exists() else 0.0


def _command_line(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""
