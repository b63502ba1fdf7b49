"""Servers on the loopback interface that clients reach through the proxy."""

import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

WAIT = 60.0
"""Seconds after which a test that waits has failed; nothing takes that long."""


class _Handler(BaseHTTPRequestHandler):
    """Answers with what it was asked."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(f"{self.path} for {self.headers['Host']}".encode())

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers["Content-Length"]))[::-1])

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name in the base
        """Log nothing."""

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def wait_until(condition: Callable[[], bool]) -> None:
    """Poll until a condition holds, such as that servers of this process have closed a socket."""
    until = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


@contextmanager
def web_server(certificate: Path | None = None) -> Generator[int, None, None]:
    """Serve HTTP, or HTTPS with a certificate, on a loopback port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, certificate.with_suffix(".key"))
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def raw_server(serve: Callable[[socket.socket], object]) -> Generator[int, None, None]:
    """Call `serve` with each connection to a loopback port, one after the other."""
    listener = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with client, suppress(OSError):
                client.settimeout(WAIT)
                serve(client)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(WAIT)
        listener.close()


def make_certificate(directory: Path, host: str) -> Path:
    """Return a certificate for a host that it signed itself, with the key beside it."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("openssl is not installed")
    certificate = directory / "server.crt"
    subprocess.run(
        [
            *(program, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", f"/CN={host}", "-addext", f"subjectAltName=DNS:{host}"),
            *("-keyout", certificate.with_suffix(".key"), "-out", certificate),
        ],
        check=True,
        capture_output=True,
    )
    return certificate
