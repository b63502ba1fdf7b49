"""Where the model's commands and code run, and what the user reads about it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from weakincentives.cli.config import AUTO, LOCAL_SANDBOX, NO_ENGINE, NO_SANDBOX, ConfigError
from weakincentives.contrib.evaluation import DEFAULT_ENGINE, find_problem
from weakincentives.contrib.tools.shell import ShellLimits
from weakincentives.sandbox import SandboxUnavailableError, choose_sandbox, probe_sandbox
from weakincentives.sandbox.probe import check_hosts

# a project has the names that people use, and so have its commands
SHELL_LIMITS = ShellLimits(ascii_commands=False)
"""The limits of commands."""


@dataclass(frozen=True, slots=True)
class RunSandbox:
    """Where commands run.

    Args:
        name: The sandbox; None if the model cannot run commands.
        reason: Why it is this one, or none, if the user did not choose it.
        hosts: The hosts that commands can reach, if it limits the network.
        broken: The promises that it does not keep on this machine.
    """

    name: str | None = None
    reason: str = ""
    hosts: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()

    @property
    def is_offline(self) -> bool:
        """Whether commands run where they can reach no host."""
        return self.name not in (None, LOCAL_SANDBOX) and not self.hosts

    @property
    def network(self) -> str:
        """What the model is told about the network; empty if it cannot run commands."""
        if self.is_offline:
            return "Commands have no network."
        if not self.hosts:
            return ""
        return (
            f"Commands can reach {', '.join(self.hosts)} by HTTP and HTTPS and no other host,"
            " through the proxy that HTTP_PROXY and HTTPS_PROXY name. Names are not resolved"
            " without it. Do not try other hosts."
        )

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
        reach = f" and reach {', '.join(self.hosts)}" if self.hosts else ""
        limits = f" Not promised here: {', '.join(self.broken)}." if self.broken else ""
        return f"The model's commands run isolated by {self.name}{reach}.{limits}{others}"


NO_COMMANDS = RunSandbox()


def resolve_sandbox(setting: str | None, hosts: Sequence[str], workspace: Path) -> RunSandbox:
    """Return the sandbox for a setting; without a setting, the first that works, or none.

    Args:
        setting: The name of a sandbox, `auto` or `none`; None if the user did not choose.
        hosts: The hosts that commands may reach.
        workspace: The directory whose programs are not used for the sandbox itself.

    Raises:
        ConfigError: The user asked for isolation that this machine does not have.
    """
    if setting == NO_SANDBOX:
        return NO_COMMANDS
    found = _resolve(setting, workspace)
    if found.name is None or not hosts:
        return found
    try:
        check_hosts(found.name, hosts)
    except SandboxUnavailableError as error:
        others = f". {found.reason}" if found.reason else ""
        raise ConfigError(f"{error}{others}") from error
    return replace(found, hosts=tuple(hosts))


def _resolve(setting: str | None, workspace: Path) -> RunSandbox:
    if setting == LOCAL_SANDBOX:
        return RunSandbox(LOCAL_SANDBOX)
    if setting is None or setting == AUTO:
        return _choose(workspace, is_optional=setting is None)
    found = probe_sandbox(setting, untrusted=[workspace])
    if found.problem:
        raise ConfigError(f"The sandbox {setting!r} cannot be used here; {found.problem}")
    return RunSandbox(setting, broken=found.broken)


def _choose(workspace: Path, *, is_optional: bool) -> RunSandbox:
    try:
        chosen = choose_sandbox(untrusted=[workspace])
    except SandboxUnavailableError as error:
        if not is_optional:
            raise ConfigError(f"{error}; --sandbox none runs without commands") from error
        return RunSandbox(reason=str(error))
    return RunSandbox(chosen.name, chosen.reason, broken=chosen.broken)


def resolve_variables(given: Sequence[str], environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables for the model's commands.

    Args:
        given: Names of the user's own variables, or names with values: `NAME=VALUE`.
        environment: The user's environment.

    Raises:
        ConfigError: A variable is not set.
    """
    variables: dict[str, str] = {}
    for each in given:
        name, has_value, value = each.partition("=")
        if not has_value and name not in environment:
            raise ConfigError(
                f"--env: the variable {name!r} is not set; set it, or pass {name}=VALUE"
            )
        variables[name] = value if has_value else environment[name]
    return variables


def resolve_engine(setting: str | None) -> str | None:
    """Return the engine that evaluates code for a setting; None if the model cannot.

    Args:
        setting: The name of an engine, `auto` or `none`; None if the user did not choose.

    Raises:
        ConfigError: The engine cannot be used here.
    """
    if setting is None or setting == NO_ENGINE:
        return None
    name = DEFAULT_ENGINE if setting == AUTO else setting
    problem = find_problem(name)
    if problem is not None:
        raise ConfigError(problem)
    return name
