"""Commands of continuous integration: what its jobs run, read without a YAML parser.

A step that is one plain command of a known tool counts; everything with variables, pipes or several
commands does not. Only the scripts of jobs are commands: not the words of a matrix, a name or an
environment, and not what runs in another directory or on another project that a job checks out.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from weakincentives.contrib.digest.commands.project import Command, Project, Purpose

MAX_WORKFLOWS = 20
_MAX_LINE = 300  # characters; a longer line is no plain command
_KEY = re.compile(r"[\"']?([\w.$/-]+)[\"']?:(?:\s+(.*))?")
_BLOCK = re.compile(r"[|>][+-]?\d?[+-]?(?:\s+#.*)?")
_PLAIN = re.compile(r"[A-Za-z./][A-Za-z0-9_./@:=, -]{0,119}")
_LEAVES = re.compile(r"(?:cd|pushd|git clone)\b")
_OWN_DIRECTORY = frozenset({"", ".", "./", "${{ github.workspace }}"})
_TESTS = r"pytest|python3? -m (?:pytest|unittest)|nox|ctest|rspec|phpunit"
_TOX = r"tox(?!.*\s-e\s*\S*(?:doc|lint|style|typ|mypy|pre-?commit|build|release|cov))"
_RUN = r"(?:npm|yarn|pnpm|bun)(?: run)?"
_PATTERNS: dict[Purpose, str] = {
    "test": rf"{_TESTS}|{_TOX}|(?:make|just|task) (?:test|check)\S*|{_RUN} test\S*"
    r"|cargo (?:test|nextest)|go test"
    r"|(?:mvn|\./mvnw|gradle|\./gradlew) \S*(?:test|verify|check)|dotnet test|meson test",
    "lint": rf"ruff check|flake8|pylint|pre-commit run|(?:make|just|task) lint\S*|{_RUN} lint\S*"
    r"|cargo clippy|go vet|golangci-lint|(?:npx )?eslint|rubocop",
    "format": rf"ruff format|black|(?:make|just|task) (?:format|fmt)\S*|{_RUN} format\S*"
    r"|cargo fmt|gofmt|(?:npx )?prettier",
    "types": rf"mypy|pyright|(?:npx )?tsc|{_RUN} (?:typecheck|type-check)",
    "build": rf"python3? -m build|cargo build|go build|cmake --build|meson compile|{_RUN} build\S*"
    r"|make(?! (?!all\b|build\b)[a-z])(?: all| build)?"  # no other target
    r"|(?:mvn|\./mvnw) package|(?:gradle|\./gradlew) build",
}
_PREFIX = r"(?:(?:uv|poetry|pdm|hatch) run )?"
_KNOWN: dict[Purpose, re.Pattern[str]] = {
    purpose: re.compile(f"{_PREFIX}(?:{pattern})(?: .*)?") for purpose, pattern in _PATTERNS.items()
}


@dataclass(slots=True)
class _Job:
    """What one job runs: the lines of its scripts by step, and the directory of each step."""

    scripts: dict[int, list[str]] = field(default_factory=dict[int, list[str]])
    directories: dict[int, str] = field(default_factory=dict[int, str])
    is_foreign: bool = False

    def commands(self) -> Iterator[str]:
        """Yield the lines that run at the root of this project."""
        if self.is_foreign:
            return
        for step, lines in self.scripts.items():
            if self.directories.get(step, "") not in _OWN_DIRECTORY:
                continue
            for line in lines:
                if _LEAVES.match(line):
                    break
                yield line


def find_ci_commands(project: Project) -> Iterator[Command]:
    """Yield the commands that workflows run, in their order, each once."""
    workflows = [
        path for path in project.list(".github/workflows") if path.endswith((".yml", ".yaml"))
    ]
    other = project.first(".gitlab-ci.yml", ".circleci/config.yml", ".travis.yml")
    seen: set[str] = set()
    for path in [*workflows[:MAX_WORKFLOWS], *([other] if other else [])]:
        for command in _find_scripts(project.text(path)):
            if command not in seen:
                seen.add(command)
                yield from _classify(project, command, path)


def _find_scripts(text: str) -> Iterator[str]:
    """Yield the lines that the jobs of a workflow run."""
    jobs: dict[tuple[str, ...], _Job] = {}
    for keys, step, value in _Reader().read(text.splitlines()):
        *parents, key = keys
        place = parents.index("steps") if "steps" in parents else len(parents)
        job = jobs.setdefault(tuple(parents[:place]), _Job())
        if key in {"working-directory", "working_directory"}:
            if parents[-2:] == ["defaults", "run"]:
                job = jobs.setdefault(tuple(parents[:-2]), _Job())
                job.is_foreign |= _unquote(value) not in _OWN_DIRECTORY
            else:
                job.directories[step] = _unquote(value)
        elif key == "repository" and "with" in parents:
            job.is_foreign |= "github.repository" not in value
        elif _is_script(parents, key):
            job.scripts.setdefault(step, []).append(_unquote(value))
    if () not in jobs or not jobs[()].is_foreign:
        for job in jobs.values():
            yield from job.commands()


def _is_script(parents: list[str], key: str) -> bool:
    if key == "script":  # of GitLab and Travis
        return "steps" not in parents
    if parents[-1:] == ["steps"]:
        return key == "run"
    return parents[-2:] == ["steps", "run"] and key == "command"  # of CircleCI


_Value = tuple[tuple[str, ...], int, str]
"""The keys above a value, the number of its list item in `steps`, and the value."""


class _Reader:
    """Reads the values of a YAML file by indentation, line by line."""

    def __init__(self) -> None:
        self._stack: list[tuple[int, str]] = []
        self._step = 0
        self._block = ""  # the sign of the block that is being read
        self._held = ""  # what is not complete yet: a folded block, or a continued line

    def read(self, lines: Iterable[str]) -> Iterator[_Value]:
        """Yield the values: each line of a literal block is one, and so is a whole folded block."""
        for line in lines:
            text = line.strip()
            indent = len(line) - len(line.lstrip(" "))
            if not text:
                continue
            if self._block and indent > self._stack[-1][0]:
                yield from self._continue(text)
                continue
            yield from self._flush()
            self._block = ""
            if not text.startswith("#"):
                yield from self._enter(text, indent)
        yield from self._flush()

    def _continue(self, text: str) -> Iterator[_Value]:
        """Add a line to the block that is being read."""
        self._held = f"{self._held} {text}".strip()
        if self._block == "|" and not text.endswith("\\"):
            yield from self._flush()

    def _flush(self) -> Iterator[_Value]:
        if self._held:
            yield self._value(self._held.replace("\\ ", ""))
        self._held = ""

    def _enter(self, text: str, indent: int) -> Iterator[_Value]:
        """Read a line that is not in a block: a key, a list item, or both."""
        while text == "-" or text.startswith("- "):
            while self._stack and self._stack[-1][0] > indent:
                self._stack.pop()
            self._step += self._stack[-1:] != [] and self._stack[-1][1] == "steps"
            inner = text[1:].lstrip()
            indent, text = indent + len(text) - len(inner), inner
        match = _KEY.fullmatch(text) if len(text) <= _MAX_LINE else None
        value = text
        if match is not None:
            while self._stack and self._stack[-1][0] >= indent:
                self._stack.pop()
            self._stack.append((indent, match[1]))
            value = match[2] or ""
        if not self._stack:
            return
        if _BLOCK.fullmatch(value):
            self._block = value[0]
        elif value:
            yield self._value(value)

    def _value(self, text: str) -> _Value:
        return tuple(key for _, key in self._stack), self._step, text


def _unquote(text: str) -> str:
    return text.partition(" #")[0].strip().strip("'\"")


def _classify(project: Project, command: str, path: str) -> Iterator[Command]:
    if not _PLAIN.fullmatch(command):
        return
    for purpose, pattern in _KNOWN.items():
        if pattern.fullmatch(command):
            yield project.command(purpose, command, path)
            return
