"""HTTP proxy for sandboxed commands: connects to the hosts of an allow-list and to no others.

The proxy runs in this process, outside the sandbox. A command reaches it on a loopback port of its
own network namespace: a process in there opens the port, and sends the listening socket here over
a Unix socket. The command gets no descriptor, and has no other way out.
"""

import errno
import logging
import os
import socket
import threading
import time
from collections.abc import Sequence

from weakincentives.sandbox.allowlist import LOCALHOST
from weakincentives.sandbox.launcher import Launcher
from weakincentives.sandbox.protocol import NetworkConnection, SandboxUnavailableError
from weakincentives.sandbox.proxy_connection import ProxyConnection, ProxySettings, shut_down
from weakincentives.sandbox.supervisor import LISTEN

_JOIN_TIMEOUT = 2.0  # seconds for connections to end when they are closed
_RETRY_INTERVAL = 0.1  # seconds, if a connection could not be accepted
_log = logging.getLogger(__name__)


class ProxyServer:
    """The proxy of one command: serves its listening socket until it is closed."""

    def __init__(self, courier: socket.socket, settings: ProxySettings) -> None:
        """Wait for the listening socket on `courier`, in a thread, and serve it.

        Args:
            courier: A Unix socket on which the listening socket is sent, or the number of the
                error that prevented it; the server closes it.
            settings: What is allowed.
        """
        self._courier = courier
        self._settings = settings
        self._lock = threading.Lock()
        self._slots = threading.Semaphore(settings.max_open)
        self._listener: socket.socket | None = None
        self._open: dict[ProxyConnection, threading.Thread] = {}
        self._finished: list[NetworkConnection] = []
        self._count = 0
        self._closed = threading.Event()
        self._has_arrived = threading.Event()
        self._port = 0
        self.error_number: int = 0
        """Why there is no listening socket, once it is known; else 0."""
        self._thread = threading.Thread(target=self._run, name="wink-proxy", daemon=True)
        self._thread.start()

    def wait_for_port(self) -> int:
        """Return the port of the listening socket, once it has arrived; 0 if it never will."""
        self._has_arrived.wait()
        return self._port

    @property
    def connections(self) -> tuple[NetworkConnection, ...]:
        """The connections that have ended, in that order."""
        with self._lock:
            return tuple(self._finished)

    def close(self) -> None:
        """End the server and all connections, each of them recorded; idempotent."""
        with self._lock:
            self._closed.set()
            shut_down(self._courier)
            if self._listener is not None:
                shut_down(self._listener)  # wakes up the thread that accepts
        self._slots.release()  # it may also wait for a connection to end
        self._thread.join()
        with self._lock:
            left = dict(self._open)
        for each in left:
            each.abort()
        until = time.monotonic() + _JOIN_TIMEOUT
        for each, thread in left.items():
            thread.join(max(0.0, until - time.monotonic()) if each.can_be_aborted else 0.0)
            each.finish()

    def _run(self) -> None:
        with self._courier:
            listener, self.error_number = _receive_listener(self._courier)
        self._port = 0 if listener is None else listener.getsockname()[1]
        self._has_arrived.set()
        if listener is None:
            return
        with listener:
            with self._lock:
                self._listener = listener
            while not self._closed.is_set():
                self._accept(listener)

    def _accept(self, listener: socket.socket) -> None:
        """Serve the next connection in a thread."""
        self._slots.acquire()
        try:
            client, _ = listener.accept()
        except OSError:
            # closed, or there is a shortage that may pass
            self._slots.release()
            self._closed.wait(_RETRY_INTERVAL)
            return
        with self._lock:
            self._count += 1
            is_surplus = self._count > self._settings.max_connections
        connection = ProxyConnection(client, self._settings, self._record, is_surplus=is_surplus)
        thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
        with self._lock:
            self._open[connection] = thread
        try:
            thread.start()
        except RuntimeError:  # too many threads
            self._end(connection)

    def _serve(self, connection: ProxyConnection) -> None:
        try:
            connection.run()
        finally:
            self._end(connection)

    def _end(self, connection: ProxyConnection) -> None:
        connection.finish()
        with self._lock:
            del self._open[connection]
        self._slots.release()

    def _record(self, connection: NetworkConnection) -> None:
        with self._lock:
            if len(self._finished) > self._settings.max_connections:
                return  # the first one above the limit is on record
            self._finished.append(connection)
        if self._settings.on_connection is not None:
            try:
                self._settings.on_connection(connection)
            except Exception:  # noqa: BLE001 # a listener must not end the connection of a command
                _log.exception("A listener failed on a connection to %s", connection.host)


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


def _receive_listener(courier: socket.socket) -> tuple[socket.socket | None, int]:
    """Return the listening socket, or the number of the error that prevented it."""
    try:
        data, descriptors, _, _ = socket.recv_fds(courier, 16, 1)
    except OSError:
        return None, errno.EPIPE
    if descriptors:
        listener = socket.socket(fileno=descriptors[0])
        listener.set_inheritable(False)  # a received descriptor is inheritable
        return listener, 0
    return None, int(data or errno.EPIPE)


def _variables(settings: ProxySettings, port: int) -> dict[str, str]:
    """Return the variables by which programs find the proxy."""
    listed = {rule.host for rule in settings.allowed.rules}
    # servers that commands start themselves, unless that name means one of the host
    direct = [each for each in (LOCALHOST, "127.0.0.1", "::1") if each not in listed]
    url = f"http://127.0.0.1:{port}"
    variables = {"http_proxy": url, "https_proxy": url, "all_proxy": url}
    variables["no_proxy"] = ",".join(direct)
    return variables | {name.upper(): value for name, value in variables.items()}
