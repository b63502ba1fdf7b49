"""The local sandbox: runs commands on the host, without isolation."""

from weakincentives.sandbox.host import HostSandbox
from weakincentives.sandbox.system_paths import find_environment, map_search_path


class LocalSandbox(HostSandbox):
    """Runs commands on the host as the current user. It isolates nothing.

    A command can read and change whatever this user can, inside the workspace and outside,
    and reach the network. Use it for code that you would run yourself. What it does provide:
    a timeout, bounded output, an environment without secrets, and cleanup of every
    process that a command started.
    """

    def _variables(self) -> dict[str, str]:
        root = self._root
        path = map_search_path(workspace=root, seen_at=root, original=self._original)
        environment = None if self._original is None else find_environment(root)
        own = [] if environment is None else [f"{root}/{environment}/bin"]
        return self._environment.variables(path=[*own, *path])
