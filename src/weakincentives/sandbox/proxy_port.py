"""The port of the proxy that one command finds on its loopback interface.

A process in the network namespace of the command opens the port and sends the listening socket
to the proxy, which is outside. The command gets no descriptor, and has no other way out.
"""

import errno
import os
import socket
from collections.abc import Sequence

from weakincentives.sandbox.allowlist import LOCALHOST
from weakincentives.sandbox.launcher import Launcher
from weakincentives.sandbox.protocol import SandboxUnavailableError
from weakincentives.sandbox.proxy import ProxyServer, ProxySettings
from weakincentives.sandbox.supervisor import LISTEN


class ProxyPort:
    """A loopback port for one command, and the proxy behind it."""

    def __init__(
        self,
        launcher: Launcher,
        settings: ProxySettings,
        passed: Sequence[int] = (),
        *,
        number: int | None = None,
    ) -> None:
        """Open a port.

        Args:
            launcher: The fork server that opens it.
            settings: What the proxy allows.
            passed: Descriptors that say in which network namespace; see `supervisor.open_port`.
            number: The number of the port, if it is opened later, when the command has started.

        Raises:
            SandboxUnavailableError: It cannot be opened.
        """
        courier, remote = socket.socketpair()
        with remote:
            try:
                launcher.launch((remote.fileno(), *passed), LISTEN)
            except BaseException as error:
                courier.close()
                if isinstance(error, OSError):
                    raise SandboxUnavailableError(f"Cannot start a process: {error}") from error
                raise
        self.server: ProxyServer = ProxyServer(courier, settings)
        if number is None:
            self.check()
        self.variables: dict[str, str] = _variables(settings, number or self.server.wait_for_port())

    def check(self) -> None:
        """Make sure that the port is open, unless the sandbox itself has failed.

        Raises:
            SandboxUnavailableError: It could not be opened.
        """
        if self.server.wait_for_port() or self.server.error_number == errno.ECHILD:
            return
        self.server.close()
        problem = os.strerror(self.server.error_number)
        raise SandboxUnavailableError(
            f"The proxy cannot open a port in the sandbox: {problem}; run it without allowed hosts"
        )


def _variables(settings: ProxySettings, port: int) -> dict[str, str]:
    """Return the variables by which programs find the proxy."""
    listed = {rule.host for rule in settings.allowed.rules}
    # servers that commands start themselves, unless that name means one of the host
    direct = [each for each in (LOCALHOST, "127.0.0.1", "::1") if each not in listed]
    url = f"http://127.0.0.1:{port}"
    variables = {"http_proxy": url, "https_proxy": url, "all_proxy": url}
    variables["no_proxy"] = ",".join(direct)
    return variables | {name.upper(): value for name, value in variables.items()}
