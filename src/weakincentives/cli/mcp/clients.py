"""The known MCP clients: where each keeps its configuration, and what it calls things there."""

import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

from weakincentives.cli.mcp.config_formats import JSON, TOML, YAML, ConfigFormat, Entry

Scope: TypeAlias = Literal["project", "user"]
_PASSED_ON = ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "WINK_CONFIG")
# a large directory is copied first, and commands take their time
_START_SECONDS, _CALL_SECONDS = 120, 600


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """How a client starts the server."""

    program: str
    arguments: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict[str, str])

    def __str__(self) -> str:
        """Return the command as a line of a shell."""
        return shlex.join((self.program, *self.arguments))


@dataclass(frozen=True, slots=True)
class Client:
    """A program that starts MCP servers from a configuration file."""

    name: str
    title: str
    format: ConfigFormat
    table: str
    """The key below which the servers are."""
    entry: Callable[[str, ServerCommand], Entry]
    """Returns the configuration of a server with this name."""
    user_path: Callable[[Mapping[str, str], Path], Path]
    """Returns the user's file for an environment and a home."""
    project_path: str | None = None
    """The project's file, relative to the directory; None if there is none."""
    next_step: str = ""
    """What to do after the configuration was written."""
    own_tools: str = ""
    """How to deny the client's own tools, which change the directory without undo."""
    rules_path: str | None = None
    """The file of the project that denies them, if there is one."""

    def scopes(self) -> tuple[Scope, ...]:
        """Return whose configuration there is, the default first."""
        return ("user",) if self.project_path is None else ("project", "user")


def _claude_entry(name: str, command: ServerCommand) -> Entry:
    del name  # it is the key
    return {"type": "stdio", **_plain_entry("", command)}


def _plain_entry(name: str, command: ServerCommand) -> Entry:
    del name
    entry: dict[str, Any] = {"command": command.program, "args": list(command.arguments)}
    return {**entry, "env": dict(command.env)} if command.env else entry


def _codex_entry(name: str, command: ServerCommand) -> Entry:
    limits = {"startup_timeout_sec": _START_SECONDS, "tool_timeout_sec": _CALL_SECONDS}
    return {**_plain_entry(name, command), **limits}


def _goose_entry(name: str, command: ServerCommand) -> Entry:
    return {
        "enabled": True,
        "type": "stdio",
        "name": name,
        "description": "A workspace with undo",
        "cmd": command.program,
        "args": list(command.arguments),
        "envs": dict(command.env),
        "timeout": _CALL_SECONDS,
    }


def _config_home(environment: Mapping[str, str], home: Path) -> Path:
    found = environment.get("XDG_CONFIG_HOME", "")
    return Path(found) if found.startswith("/") else home / ".config"


def _own_home(environment: Mapping[str, str], variable: str, default: Path) -> Path:
    found = environment.get(variable, "")
    return Path(found) if found.startswith("/") else default


CLIENTS: Mapping[str, Client] = {
    each.name: each
    for each in (
        Client(
            "claude-code",
            "Claude Code",
            JSON,
            "mcpServers",
            _claude_entry,
            lambda env, home: _own_home(env, "CLAUDE_CONFIG_DIR", home) / ".claude.json",
            ".mcp.json",
            "Start claude in the directory and approve the server; /mcp shows it.",
            "They are denied in the directory, for you alone.",
            ".claude/settings.local.json",
        ),
        Client(
            "codex",
            "Codex",
            TOML,
            "mcp_servers",
            _codex_entry,
            lambda env, home: _own_home(env, "CODEX_HOME", home / ".codex") / "config.toml",
            next_step="Start codex; /mcp shows the server.",
            own_tools="Start it with codex --sandbox read-only.",
        ),
        Client(
            "cursor",
            "Cursor",
            JSON,
            "mcpServers",
            _plain_entry,
            lambda _, home: home / ".cursor" / "mcp.json",
            ".cursor/mcp.json",
            "Open Cursor's settings, Tools & MCP, and turn the server on.",
            "Tell its agent to use those of the server only.",
        ),
        Client(
            "vscode",
            "VS Code",
            JSON,
            "servers",
            _claude_entry,
            lambda env, home: _config_home(env, home) / "Code" / "User" / "mcp.json",
            ".vscode/mcp.json",
            "Run MCP: List Servers in VS Code and start the server.",
            "In the chat, Configure Tools: clear edit and execute.",
        ),
        Client(
            "goose",
            "goose",
            YAML,
            "extensions",
            _goose_entry,
            lambda env, home: _config_home(env, home) / "goose" / "config.yaml",
            next_step="Start a new goose session.",
            own_tools="Run goose configure, Toggle Extensions, and turn developer off.",
        ),
        Client(
            "gemini",
            "Gemini CLI",
            JSON,
            "mcpServers",
            _plain_entry,
            lambda _, home: home / ".gemini" / "settings.json",
            ".gemini/settings.json",
            "Start gemini in the directory; /mcp shows the server.",
            "Refuse them when gemini asks: replace, write_file and run_shell_command without wink.",
        ),
    )
}
"""The clients by the name that `wink mcp --install` takes."""

DENIED_TOOLS = ("Edit", "Write", "NotebookEdit", "Bash")
"""The rules against Claude Code's own tools; in this order they are known as ours."""


def server_command(arguments: Sequence[str], environment: Mapping[str, str]) -> ServerCommand:
    """Return the absolute command that starts `wink mcp` of this environment.

    Clients pass on few variables. Those that decide where wink keeps its state are written down,
    so that `wink review` finds what the server did.
    """
    env = {name: environment[name] for name in _PASSED_ON if environment.get(name)}
    program = Path(sys.executable).parent / "wink"  # not resolved: a virtual environment is a link
    if os.access(program, os.X_OK):
        return ServerCommand(str(program), ("mcp", *arguments), env)
    return ServerCommand(sys.executable, ("-m", "weakincentives", "mcp", *arguments), env)


def is_own_entry(entry: object, directory: Path | None = None) -> bool:
    """Return whether an entry starts `wink mcp`, of whatever environment, for a directory."""
    if not isinstance(entry, dict):
        return False
    words = _words(cast("dict[str, Any]", entry))
    if directory is not None and str(directory) not in words:
        return False
    is_wink = any(each == "wink" or each.endswith("/wink") for each in words)
    return "mcp" in words and (is_wink or "weakincentives" in words)


def _words(entry: Mapping[str, Any]) -> list[str]:
    """Return the words of the command of an entry."""
    arguments = entry.get("args")
    more = cast("list[Any]", arguments) if isinstance(arguments, list) else []
    words: list[Any] = [entry.get("command"), entry.get("cmd"), *more]
    return [each for each in words if isinstance(each, str)]
