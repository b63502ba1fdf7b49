"""The ratchet: no figure of the source tree gets worse than `scripts/shape.toml` says.

The file has the best figures so far, and below them the raises: figures that had to get worse,
each with its reason. A better figure is written down with `make shape ARGS=--update`, so that it
stays.
"""

import json
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from scripts.steps import ROOT

FILE = ROOT / "scripts" / "shape.toml"
TOTAL = "lines"
UPDATE = "make shape ARGS=--update"
_HEADER = f"""\
# What `make shape` holds: a figure that gets worse than here fails `make check`.
# It got better: `{UPDATE}` writes it down.
# It must get worse: leave the figure, and add a line with the reason below [raises]:
#   "lines: mcp" = {{ to = 3_200, reason = "resources can be subscribed to" }}
# The lines of all packages may grow by what the raises of single packages allow.
"""


@dataclass(frozen=True, slots=True)
class Raise:
    """A figure that had to get worse, and why."""

    to: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Ratchet:
    """The best figures so far, and the raises."""

    figures: Mapping[str, int]
    raises: Mapping[str, Raise] = field(default_factory=dict[str, Raise])

    @classmethod
    def parse(cls, text: str) -> "Ratchet":
        """Read the file's text."""
        data = tomllib.loads(text)
        raises = {name: Raise(**given) for name, given in data.get("raises", {}).items()}
        return cls(data["figures"], raises)

    def __str__(self) -> str:
        """Return the file's text."""
        lines = [_HEADER, "[figures]"]
        lines += [f'"{name}" = {value}' for name, value in self.figures.items()]
        lines += ["", "[raises]"]
        lines += [
            f'"{name}" = {{ to = {each.to}, reason = {json.dumps(each.reason)} }}'
            for name, each in self.raises.items()
        ]
        return "\n".join(lines) + "\n"

    def limit(self, name: str) -> int:
        """Return the worst value that a figure may have."""
        if name in self.raises:
            return max(self.raises[name].to, self.figures[name])
        if name == TOTAL:
            return self.figures[name] + sum(map(self._growth, self.raises))
        return self.figures[name]

    def problems(
        self, measured: Mapping[str, int], before: Mapping[str, int] | None = None
    ) -> Iterator[str]:
        """Yield a sentence for each figure that got worse, and for each raise without a reason.

        Args:
            measured: The figures of the source tree.
            before: The figures of the file before it was changed, if they are known.
        """
        yield from self._unexplained(before or {})
        for name, value in measured.items():
            if name not in self.figures:
                yield f"{name!r} is a new figure, {value}: write it down with `{UPDATE}`"
            elif value > self.limit(name) + (self._excess(measured) if name == TOTAL else 0):
                yield _worse(name, value, self.limit(name))

    def improvements(self, measured: Mapping[str, int]) -> list[str]:
        """Return the figures that got better, as rows."""
        return [
            f"{name}: {self._written(name)} -> {value}"
            for name, value in measured.items()
            if name in self.figures and value < self._written(name)
        ]

    def update(self, measured: Mapping[str, int]) -> "Ratchet":
        """Return the ratchet with the figures that got better, without raises that ended."""
        figures = {
            name: min(value, self.figures.get(name, value)) for name, value in measured.items()
        }
        raises = {
            name: replace(each, to=min(each.to, measured[name]))
            for name, each in self.raises.items()
            if name in measured and measured[name] > figures[name]
        }
        return Ratchet(figures, raises)

    def _unexplained(self, before: Mapping[str, int]) -> Iterator[str]:
        """Yield a sentence for each raise without a reason."""
        for name, each in self.raises.items():
            if name not in self.figures:
                yield f"[raises] has {name!r}, which is not a figure: remove the line"
            elif not each.reason.strip():
                yield f"The raise of {name!r} to {each.to} has no reason: say why it must be"
        for name, value in self.figures.items():
            old = before.get(name, value)
            if value > old:
                yield (
                    f"{name!r} was raised from {old} to {value} below [figures]: put {old} back,"
                    " and write the raise with its reason below [raises]"
                )

    def _written(self, name: str) -> int:
        return self.raises[name].to if name in self.raises else self.figures[name]

    def _excess(self, measured: Mapping[str, int]) -> int:
        """Return the lines by which packages are worse, each of which has its own sentence."""
        packages = (each for each in self.figures if each.startswith(f"{TOTAL}: "))
        return sum(max(measured.get(each, 0) - self.limit(each), 0) for each in packages)

    def _growth(self, name: str) -> int:
        if not name.startswith(f"{TOTAL}: ") or name not in self.figures:
            return 0
        return max(self.raises[name].to - self.figures[name], 0)


def figures_before(path: Path = FILE) -> Mapping[str, int]:
    """Return the figures of the file in git before it was changed; empty if git has none."""
    name = path.relative_to(path.parents[1]).as_posix()
    for commit in ("HEAD", "HEAD~1"):
        command = ["git", "show", f"{commit}:{name}"]
        done = subprocess.run(
            command, cwd=path.parents[1], capture_output=True, text=True, check=False
        )
        if done.returncode == 0 and done.stdout != path.read_text(encoding="utf-8"):
            return Ratchet.parse(done.stdout).figures
    return {}


def _worse(name: str, value: int, limit: int) -> str:
    return (
        f"{name!r} is {value}, {value - limit} more than {limit} in scripts/shape.toml: merge or"
        " delete what exists twice; if it must be, add a line with the reason below [raises]:"
        f' "{name}" = {{ to = {value}, reason = "..." }}'
    )
