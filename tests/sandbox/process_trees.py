"""Shell scripts that start processes which resist termination, and a way to find these."""

import os
import select
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

_numbers = count(1)
_KILL_TIMEOUT = 60  # seconds; a killed process may take long on a busy machine

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
"""A child, one in another session, one orphan, one that ignores SIGTERM, and one that is
stopped; the last line is printed when all have started and `ready` exists."""

FLEEING = """
if [ $1 -eq 0 ]; then exec sleep {mark}; fi
setsid sh flee.sh $(($1 - 1)) &
"""
"""A process that starts the next one in another session and exits, again and again."""

BOMB = """
bomb() {{
    if [ $1 -gt 0 ]; then bomb $(($1 - 1)) & bomb $(($1 - 1)) & fi
    exec sleep {mark}
}}
: > ready; echo ready
bomb 6
"""
"""A fork bomb: seven generations of two processes each."""


@dataclass(frozen=True)
class Mark:
    """A unique number of seconds to sleep, by which processes are found."""

    seconds: str = field(default_factory=lambda: f"86{next(_numbers):03}.{os.getpid()}")

    def script(self, text: str) -> list[str]:
        """Return the command that runs a script of this module."""
        return ["sh", "-c", text.format(mark=self.seconds)]

    def processes(self) -> list[str]:
        """Return the command lines of the processes with this mark."""
        return list(self._find().values())

    def wait_for_killed(self) -> None:
        """Wait until killed processes are gone; one that was not killed stays for a day."""
        for pid in self._find():
            with suppress(ProcessLookupError):
                descriptor = os.pidfd_open(pid)
                select.select([descriptor], [], [], _KILL_TIMEOUT)
                os.close(descriptor)

    def _find(self) -> dict[int, str]:
        numbers = [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()]
        lines = {number: _command_line(number) for number in numbers}
        return {number: line for number, line in lines.items() if self.seconds in line}


@dataclass(frozen=True)
class TimeIsUpWith:
    """A clock that stands still until a file exists, and then is far ahead."""

    path: Path

    def __call__(self) -> float:
        return 1e5 if self.path.exists() else 0.0


def _command_line(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""
