"""The sandbox of a run: where the model's commands run, and what the user reads about it."""

from dataclasses import dataclass

from weakincentives.cli.config import AUTO, LOCAL_SANDBOX, NO_SANDBOX, ConfigError
from weakincentives.sandbox import SandboxUnavailableError, choose_sandbox, probe_sandbox


@dataclass(frozen=True, slots=True)
class RunSandbox:
    """Where commands run.

    Args:
        name: The sandbox; None if the model cannot run commands.
        reason: Why it is this one, or none, if the user did not choose it.
    """

    name: str | None = None
    reason: str = ""

    @property
    def isolation(self) -> str | None:
        """What isolates commands: `none` on the bare host, None if there are no commands."""
        return "none" if self.name == LOCAL_SANDBOX else self.name

    def __str__(self) -> str:
        """Return a sentence for the user; empty if there is nothing to say."""
        if self.name is None:
            return f"The model cannot run commands. {self.reason}" if self.reason else ""
        if self.name == LOCAL_SANDBOX:
            return "The model's commands run on this machine with no isolation (--sandbox local)."
        others = f" Not used: {self.reason}" if self.reason else ""
        return f"The model's commands run isolated by {self.name}.{others}"


NO_COMMANDS = RunSandbox()


def resolve_sandbox(setting: str | None) -> RunSandbox:
    """Return the sandbox for a setting; without a setting, the first that works, or none.

    Raises:
        ConfigError: The user asked for isolation that this machine does not have.
    """
    if setting == NO_SANDBOX:
        return NO_COMMANDS
    if setting == LOCAL_SANDBOX:
        return RunSandbox(LOCAL_SANDBOX)
    if setting is None or setting == AUTO:
        return _choose(is_optional=setting is None)
    problem = probe_sandbox(setting).problem
    if problem:
        raise ConfigError(f"The sandbox {setting!r} cannot be used here; {problem}")
    return RunSandbox(setting)


def _choose(*, is_optional: bool) -> RunSandbox:
    try:
        chosen = choose_sandbox()
    except SandboxUnavailableError as error:
        if not is_optional:
            raise ConfigError(f"{error}; --sandbox none runs without commands") from error
        return RunSandbox(reason=str(error))
    return RunSandbox(chosen.name, chosen.reason)
