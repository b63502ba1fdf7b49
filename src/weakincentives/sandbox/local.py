"""The local sandbox: runs commands on the host, without isolation."""

from weakincentives.sandbox.host import HostSandbox


class LocalSandbox(HostSandbox):
    """Runs commands on the host as the current user. It isolates nothing.

    A command can read and change whatever this user can, inside the workspace and outside,
    and reach the network. Use it for code that you would run yourself. What it does provide:
    a timeout, bounded output, an environment without secrets, and cleanup of every
    process that a command started.
    """
