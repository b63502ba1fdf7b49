"""What code in asteval prints: to its own standard streams, never to those of the process.

Used in the worker process.
"""

import io
import pprint
from typing import Any

from weakincentives.contrib.evaluation.worker.asteval.symbols import HostFunction, Namespace
from weakincentives.contrib.evaluation.worker.session import Host


class Stream(io.TextIOBase):
    """A standard stream of the code."""

    def __init__(self, host: Host, name: str) -> None:
        """Send what is written to the host."""
        self._host = host
        self._name = name

    def write(self, text: str, /) -> int:
        """Send text."""
        self._host.print(self._name, text)
        return len(text)


class Output:
    """The streams of one evaluation, and the functions that print to them."""

    def __init__(self, host: Host) -> None:
        """Send everything to `host`."""
        self._stdout = Stream(host, "stdout")
        self._stderr = Stream(host, "stderr")

    def functions(self) -> dict[str, Any]:
        """Return the function that is there without an import."""
        return {"print": HostFunction("print", self.print)}

    def print(
        self, *values: Any, sep: Any = " ", end: Any = "\n", file: Any = None, **_: Any
    ) -> None:
        """Print values; the function `print` of the code."""
        text = (" " if sep is None else str(sep)).join(map(str, values))
        target = self._stdout if file is None else file
        target.write(text + ("\n" if end is None else str(end)))

    def pprint(self, value: Any, **options: Any) -> None:
        """Print a value over several lines; the function `pprint` of the code."""
        self._stdout.write(pprint.pformat(value, **options) + "\n")

    def system(self) -> Namespace:
        """Return the module `sys` of the code."""
        return Namespace(
            stdout=self._stdout, stderr=self._stderr, maxsize=2**63 - 1, argv=["main.py"]
        )
