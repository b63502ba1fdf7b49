"""Commands from continuous integration: what the project itself runs on every change.

The files are YAML, but only their lines are read: a step that is one plain command of a known
tool counts, everything with variables, pipes or several commands does not.
"""

import re
from collections.abc import Iterator

from weakincentives.contrib.digest.project import Command, Project, Purpose

MAX_WORKFLOWS = 20
_STEP = re.compile(r"^\s*(?:-\s+)?(?:run:\s*)?(?P<command>[A-Za-z./][^\n#]*?)\s*$")
_PLAIN = re.compile(r"[A-Za-z0-9_./@:=, -]{1,120}")
_TESTS = r"pytest|python3? -m (?:pytest|unittest)|tox|nox|ctest|rspec|phpunit"
_RUN = r"(?:npm|yarn|pnpm|bun)(?: run)?"
_PATTERNS: dict[Purpose, str] = {
    "test": rf"{_TESTS}|(?:make|just|task) (?:test|check)\S*|{_RUN} test\S*|cargo (?:test|nextest)"
    r"|go test|(?:mvn|\./mvnw|gradle|\./gradlew) \S*(?:test|verify|check)|dotnet test|meson test",
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


def find_ci_commands(project: Project) -> Iterator[Command]:
    """Yield the commands that workflows run, in their order, each once."""
    workflows = [
        path for path in project.list(".github/workflows") if path.endswith((".yml", ".yaml"))
    ]
    other = project.first(".gitlab-ci.yml", ".circleci/config.yml", ".travis.yml")
    seen: set[str] = set()
    for path in [*workflows[:MAX_WORKFLOWS], *([other] if other else [])]:
        for line in project.text(path).splitlines():
            command = _plain_command(line)
            if command and command not in seen:
                seen.add(command)
                yield from _classify(project, command, path)


def _plain_command(line: str) -> str | None:
    match = _STEP.match(line) if len(line) < 300 else None
    if match is None:
        return None
    command = match["command"].strip("'\"")
    return command if _PLAIN.fullmatch(command) else None


def _classify(project: Project, command: str, path: str) -> Iterator[Command]:
    for purpose, pattern in _KNOWN.items():
        if pattern.fullmatch(command):
            yield project.command(purpose, command, path)
            return
