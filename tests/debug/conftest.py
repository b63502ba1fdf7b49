"""A debug server over recorded sessions, in a thread."""

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.debug.recordings import record, record_branches
from weakincentives.debug import SnapshotStore
from weakincentives.debug.server import DebugServer
from weakincentives.serde import decode


@dataclass(frozen=True)
class Answer:
    """What the server answered."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return decode(self.body, object)


@dataclass(frozen=True)
class Client:
    """Asks a server, with its token unless told otherwise."""

    url: str
    host: str
    port: int
    token: str

    def get(self, target: str, method: str = "GET", **headers: str | None) -> Answer:
        """Send a request; `host` and other headers replace what a program would send."""
        given = {"Host": f"{self.host}:{self.port}", "Authorization": f"Bearer {self.token}"}
        for name, value in headers.items():
            given[name.replace("_", "-").title()] = value  # type: ignore[assignment]
        connection = HTTPConnection(self.host, self.port, timeout=60)
        try:
            connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
            for name, value in given.items():
                if value is not None:
                    connection.putheader(name, value)
            connection.endheaders()
            response = connection.getresponse()
            names = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, names, response.read())
        finally:
            connection.close()

    def api(self, target: str) -> Any:
        """Return what a route answers."""
        answer = self.get(f"/api/{target}")
        assert answer.status == 200, answer
        return answer.json


@contextmanager
def serve(path: Path) -> Iterator[Client]:
    """Serve what is at a path until the block ends."""
    store = SnapshotStore(path)
    server = DebugServer(store)
    thread = Thread(target=server.serve)
    thread.start()
    address = server.address
    try:
        yield Client(address.url, address.host, address.port, address.token)
    finally:
        server.stop()
        thread.join()
        store.close()


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the timeline of a session with a bit of everything."""
    return record(tmp_path_factory.mktemp("recorded"))


@pytest.fixture(scope="session")
def branched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the timeline of a session with two branches."""
    return record_branches(tmp_path_factory.mktemp("branched"))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two sessions."""
    place = tmp_path_factory.mktemp("folder")
    record(place, "first")
    record_branches(place)
    return place


@pytest.fixture(scope="session")
def client(recorded: Path) -> Generator[Client, None, None]:
    """Return a client of a server for one session."""
    with serve(recorded) as made:
        yield made


@pytest.fixture(scope="session")
def folder_client(folder: Path) -> Generator[Client, None, None]:
    """Return a client of a server for a folder."""
    with serve(folder) as made:
        yield made


@pytest.fixture
def serving() -> Callable[[Path], Any]:
    """Return what serves a path of a test's own."""
    return serve
