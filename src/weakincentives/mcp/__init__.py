"""The workspace for MCP clients: tools on files, undo, and the session's log.

`McpWorkspace` is the workspace; `weakincentives.mcp.stdio` serves it to the client that starts the
process. It needs the extra `mcp`. The names load when they are used first, so a program that may
become a server waits for the SDK alone; `__init__.pyi` has them for type checkers.
"""

from importlib import import_module as _import_module

try:
    import mcp.server as _sdk
except ModuleNotFoundError as _error:
    from weakincentives.extras import describe_missing as _describe_missing

    raise ModuleNotFoundError(
        _describe_missing("the MCP server", "mcp"), name=_error.name
    ) from _error

del _sdk

# `__getattr__` has them
__all__ = ["McpClient", "McpWorkspace", "serve_stdio"]  # pyright: ignore[reportUnsupportedDunderAll]

_HOMES = {"McpClient": "clients", "McpWorkspace": "workspace", "serve_stdio": "stdio"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(_import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
