"""What a model can ask a sandbox to run: a program with its arguments, or a line for a shell."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShellExecuteParams:
    """Run a program.

    Args:
        command: The program and its arguments, one item each, for example
            ["python", "-m", "pytest", "-q"]. No shell reads it; for pipes, patterns and && run
            one: ["sh", "-c", "grep -c def *.py | sort"].
        cwd: The directory to run it in; the top of the workspace if left out.
        env: Environment variables to set.
        stdin: What the program can read; nothing if left out.
        timeout_seconds: After how many seconds it is stopped, from 1 to 120.
        capture_output: Whether its output is returned.
    """

    command: tuple[str, ...]
    cwd: str | None = None
    env: dict[str, str] | None = None
    stdin: str | None = None
    timeout_seconds: float = 30
    capture_output: bool = True


@dataclass(frozen=True, slots=True)
class BashParams:
    """Run a line, or a script, in a shell: bash, or sh where there is no bash.

    Args:
        command: The line.
        timeout: After how many milliseconds it is stopped; as late as allowed if left out.
        cwd: The directory to run it in; the top of the workspace if left out.
        max_output: How many bytes of each stream to return at most.
    """

    command: str
    timeout: int | None = None
    cwd: str | None = None
    max_output: int | None = None
