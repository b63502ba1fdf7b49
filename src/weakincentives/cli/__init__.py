"""The `wink` command: one module per command, loaded when the command runs."""

__all__: list[str] = []
