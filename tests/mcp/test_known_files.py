"""What a client has read or written, and somebody has changed since, is not overwritten."""

import os
from pathlib import Path
from threading import Event

import anyio
import pytest
from mcp import Client

from tests.mcp.serving import Served, call, fail, run, serve
from weakincentives.filesystem import FilesystemSnapshot, HostFilesystem
from weakincentives.posix import fault_hook


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a directory with a file."""
    made = tmp_path / "w"
    made.mkdir()
    (made / "a.txt").write_text("one\ntwo\n")
    return made


async def write(client: Client, content: str) -> str:
    return await call(client, "write_file", path="a.txt", content=content)


async def refuse(client: Client, content: str = "agent\n") -> str:
    text = await fail(client, "write_file", path="a.txt", content=content)
    assert text.startswith("'a.txt' was changed by the user or another program since you last read")
    assert "Read it again" in text
    return text


async def read(client: Client) -> str:
    return await call(client, "read_text_file", path="a.txt")


def test_a_file_that_was_read_and_changed_since_is_not_overwritten(root: Path) -> None:
    async def work(served: Served) -> None:
        client = await served.connect()
        await read(client)
        (root / "a.txt").write_text("one\nmine\n")
        text = await refuse(client)
        assert "-two\n+mine\n" in text
        assert (root / "a.txt").read_text() == "one\nmine\n"
        assert "write_file by tester #1 failed" in await call(client, "review")
        await read(client)
        await write(client, "agent\n")
        assert (root / "a.txt").read_text() == "agent\n"

    run(root, work)


def test_what_changed_is_shown_even_if_no_state_has_what_was_read(root: Path) -> None:
    saved = Event()

    class SlowFilesystem(HostFilesystem):
        """Takes the state at the start when the user has saved the file."""

        def snapshot(self, *, tag: str | None = None) -> FilesystemSnapshot:
            saved.wait(60)
            return super().snapshot(tag=tag)

    async def work() -> None:
        with SlowFilesystem(root, git_dir=root.parent / "git") as files:
            async with serve(files) as served:
                client = await served.connect()
                await read(client)
                (root / "a.txt").write_text("one\nmine\n")
                saved.set()
                assert "-two\n+mine\n" in await refuse(client)

    anyio.run(work)


def test_a_file_that_was_written_and_changed_since_is_not_overwritten(root: Path) -> None:
    async def work(served: Served) -> None:
        client = await served.connect()
        await write(client, "agent\n")
        await write(client, "agent 2\n")
        (root / "a.txt").write_text("agent 2\nmine\n")
        assert "+mine" in await refuse(client)
        # an edit works on the new text, but shows only a part of it
        edits = [{"oldText": "agent 2", "newText": "agent 3"}]
        await call(client, "edit_file", path="a.txt", edits=edits)
        assert (root / "a.txt").read_text() == "agent 3\nmine\n"
        await refuse(client)
        await read(client)
        await write(client, "agent 4\n")

    run(root, work)


def test_a_file_that_the_client_never_read_is_replaced_and_kept_as_a_step(root: Path) -> None:
    async def work(served: Served) -> None:
        one, two = await served.connect("one"), await served.connect("two")
        await read(one)
        await call(one, "review")  # a read does not wait for the state at the start; this does
        (root / "a.txt").write_text("mine\n")
        await write(two, "agent\n")
        review = await call(two, "review")
        assert "call 1: change by the user: a.txt" in review
        assert "call 2: write_file by two #2: a.txt" in review
        await call(two, "undo")
        assert (root / "a.txt").read_text() == "mine\n"

    run(root, work)


def test_content_decides_and_not_the_time(root: Path) -> None:
    async def work(served: Served) -> None:
        client = await served.connect()
        await read(client)
        other = root / "swap"
        other.write_text("one\ntwo\n")
        other.rename(root / "a.txt")
        os.utime(root / "a.txt", (1, 1))
        await write(client, "agent\n")
        stat = (root / "a.txt").stat()
        (root / "a.txt").write_text("AGENT\n")
        os.utime(root / "a.txt", ns=(stat.st_atime_ns, stat.st_mtime_ns))
        await refuse(client)

    run(root, work)


def test_what_the_client_undoes_deletes_or_creates_again_is_known_to_it(root: Path) -> None:
    async def work(served: Served) -> None:
        client = await served.connect()
        await write(client, "agent\n")
        await call(client, "undo")
        await write(client, "again\n")
        await call(client, "undo")
        (root / "a.txt").write_text("mine\n")
        await refuse(client)
        await read(client)
        await call(client, "delete_file", path="a.txt")
        await write(client, "new\n")
        (root / "a.txt").unlink()  # nothing is there that could be lost
        await write(client, "agent\n")

    run(root, work)


def test_a_save_while_a_known_file_is_written_stays_at_its_path(root: Path) -> None:
    saved: list[str] = []

    def save(point: str) -> None:
        if point == "store.written" and not saved:
            saved.append(point)
            (root / "a.txt").write_text("mine\n")

    async def work(served: Served) -> None:
        client = await served.connect()
        await read(client)
        with fault_hook(save):
            text = await fail(client, "write_file", path="a.txt", content="agent\n")
        assert saved
        assert "read it again: a.txt" in text
        assert (root / "a.txt").read_text() == "mine\n"
        await refuse(client)

    run(root, work)


def test_an_edit_of_what_somebody_has_changed_leaves_the_rest_unknown(root: Path) -> None:
    async def work(served: Served) -> None:
        client = await served.connect()
        await write(client, "agent\ntwo\n")
        (root / "a.txt").write_text("agent\nmine\n")
        edit = {"oldText": "agent", "newText": "AGENT"}
        await call(client, "edit_file", path="a.txt", edits=[edit])
        assert (root / "a.txt").read_text() == "AGENT\nmine\n"
        await refuse(client)  # it has never seen the second line
        await read(client)
        await write(client, "agent\n")

    run(root, work)
