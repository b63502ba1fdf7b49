"""Resources, subscriptions and roots, with the official SDK's client."""

import base64
import re
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.shared.exceptions import MCPError
from mcp.types import ErrorData, ListRootsResult, Root

from tests.mcp.serving import Served, call, fail, run


def test_files_are_listed_in_pages_and_read_as_text_or_bytes(tmp_path: Path) -> None:
    root = tmp_path / "w"
    root.mkdir()
    (root / ".gitignore").write_text("ignored/\n")
    (root / "ignored").mkdir()
    (root / "ignored/x.txt").write_text("x")
    (root / "many").mkdir()
    for number in range(700):
        (root / f"many/{number:03}.txt").write_text(str(number))
    (root / "ä b.txt").write_text("text")
    (root / "data.bin").write_bytes(b"\xff\0")
    (root / "link").symlink_to("data.bin")

    async def work(served: Served) -> None:
        client = await served.connect()
        names, cursor, pages = [], None, 0
        while cursor is not None or not pages:
            page = await client.list_resources(cursor=cursor)
            names += [each.name for each in page.resources]
            cursor, pages = page.next_cursor, pages + 1
        assert pages == 2
        assert len(names) == len(set(names)) == 2 + 3 + 700
        assert "ignored/x.txt" not in names
        uris = {each.name: each.uri for each in (await client.list_resources()).resources}
        assert str(uris["data.bin"]) == (root / "data.bin").as_uri()
        text = (await client.read_resource((root / "ä b.txt").as_uri())).contents[0]
        assert (text.text, text.mime_type) == ("text", "text/plain")  # type: ignore[union-attr]
        blob = (await client.read_resource(uris["data.bin"])).contents[0]
        assert base64.b64decode(blob.blob) == b"\xff\0"  # type: ignore[union-attr]
        for uri in ("file:///etc/passwd", (tmp_path / "w/../x").as_uri(), "other://x", "file:///"):
            with pytest.raises(MCPError):
                await client.read_resource(uri)
        with pytest.raises(MCPError, match="missing"):
            await client.read_resource((root / "missing").as_uri())
        with pytest.raises(MCPError, match="cursor"):
            await client.list_resources(cursor="\u00e4")

    run(root, work)


def test_diffs_and_the_log_are_resources(tmp_path: Path) -> None:
    async def work(served: Served) -> None:
        client = await served.connect()
        await call(client, "write_file", path="a.txt", content="one\n")
        await call(client, "checkpoint", name="my state")
        await call(client, "write_file", path="a.txt", content="two\n")
        await fail(client, "read_text_file", path="missing")
        assert "+two" in await _read(client, "wink://diff/start")
        assert "-one" in await _read(client, "wink://diff/my%20state")
        assert "-one" in await _read(client, "wink://diff/2")
        log = await _read(client, "wink://log")
        assert "tester #1 write_file ok" in log
        assert re.search(r"tester #1 write_file ok, \d+ ms: a\.txt", log)
        assert "read_text_file failed" in log
        templates = (await client.list_resource_templates()).resource_templates
        assert {each.name for each in templates} == {"file", "diff"}
        with pytest.raises(MCPError, match="Unknown checkpoint"):
            await client.read_resource("wink://diff/nothing")

    run(tmp_path / "w", work)


async def _read(client: Any, uri: str) -> str:
    return (await client.read_resource(uri)).contents[0].text


def test_subscribers_are_notified_of_changes(tmp_path: Path) -> None:
    root = tmp_path / "w"

    async def work(served: Served) -> None:
        news: list[str] = []
        arrived = anyio.Event()

        async def on_message(message: Any) -> None:
            if getattr(message, "method", "") == "notifications/resources/updated":
                news.append(str(message.params.uri))
                arrived.set()

        watcher = await served.connect("watcher", message_handler=on_message)
        writer = await served.connect("writer")
        (root / "new\nline").touch()
        for name in ("a.txt", "new\nline"):
            with pytest.warns(match="removed"):
                await watcher.subscribe_resource((root / name).as_uri())
        await call(writer, "write_file", path="b.txt", content="")
        for name in ("a.txt", "new\nline"):
            await call(writer, "write_file", path=name, content="x")
            await arrived.wait()
            arrived = anyio.Event()
        assert news == [(root / "a.txt").as_uri(), (root / "new\nline").as_uri()]

    run(root, work)


def test_listeners_of_the_protocol_without_handshake_are_notified_too(tmp_path: Path) -> None:
    uri = (tmp_path / "w/a.txt").as_uri()

    async def work(served: Served) -> None:
        client = await served.connect(mode="2026-07-28")
        async with client.listen(resource_subscriptions=[uri]) as news:
            await call(client, "write_file", path="a.txt", content="")
            assert str(getattr(await anext(aiter(news)), "uri", "")) == uri

    run(tmp_path / "w", work)


def roots(*paths: Path) -> Any:
    async def list_roots(_context: Any) -> ListRootsResult:
        return ListRootsResult(roots=[Root(uri=path.as_uri()) for path in paths])  # type: ignore[arg-type]

    return list_roots


def test_roots_restrict_a_client_and_never_widen(tmp_path: Path) -> None:
    root = tmp_path / "w"
    (root / "src").mkdir(parents=True)
    (root / "src/a.txt").write_text("a")
    (root / "secret.txt").write_text("secret")

    async def work(served: Served) -> None:
        free = await served.connect("free")
        inside = await served.connect("inside", list_roots_callback=roots(root / "src"))
        wide = await served.connect("wide", list_roots_callback=roots(tmp_path, Path("/")))
        outside = await served.connect("outside", list_roots_callback=roots(tmp_path / "other"))
        await call(inside, "read_text_file", path="src/a.txt")
        assert await call(inside, "list_allowed_directories") == (
            f"Allowed directories:\n{root / 'src'}"
        )
        assert "outside the roots" in await fail(inside, "read_text_file", path="secret.txt")
        assert "outside the roots" in await fail(inside, "search_files", path=".", pattern="**/*")
        await fail(inside, "write_file", path="b.txt", content="")
        await fail(inside, "move_file", source="src/a.txt", destination="b.txt")
        written = await free.call_tool("write_file", {"path": "secret.txt", "content": "changed"})
        number = written.structured_content["call"]
        assert "secret" not in await call(inside, "diff")
        assert "secret" not in await call(inside, "review")
        assert "outside the roots" in await fail(inside, "undo", call=number)
        names = {each.name for each in (await inside.list_resources()).resources}
        assert names == {"diff", "log", "src/a.txt"}
        with pytest.raises(MCPError, match="outside the roots"):
            await inside.read_resource((root / "secret.txt").as_uri())
        await call(wide, "read_text_file", path="secret.txt")
        await fail(wide, "read_text_file", path=str(tmp_path / "x"))
        assert "add a directory" in await fail(outside, "list_directory", path=".")

    run(root, work)
    assert (root / "secret.txt").read_text() == "changed"


@pytest.mark.parametrize("uri", ["http://host/", "file:///a%00b", "file://host/"])
def test_a_client_whose_roots_are_invalid_has_access_to_nothing(tmp_path: Path, uri: str) -> None:
    root = tmp_path / "w"
    root.mkdir()
    (root / "a.txt").write_text("a")

    async def list_roots(context: Any) -> ListRootsResult:
        del context
        return ListRootsResult(roots=[Root.model_construct(uri=uri)])

    async def work(served: Served) -> None:
        client = await served.connect(list_roots_callback=list_roots)
        assert "roots" in await fail(client, "read_text_file", path="a.txt")
        with pytest.raises(MCPError, match="roots"):
            await client.read_resource((root / "a.txt").as_uri())

    run(root, work)


def test_a_client_that_fails_to_list_its_roots_has_access_to_nothing(tmp_path: Path) -> None:
    async def list_roots(context: Any) -> ErrorData:
        del context
        return ErrorData(code=-32603, message="not now")

    async def work(served: Served) -> None:
        client = await served.connect(list_roots_callback=list_roots)
        assert "not now" in await fail(client, "list_directory", path=".")

    run(tmp_path / "w", work)


def test_roots_are_asked_again_when_they_change(tmp_path: Path) -> None:
    root = tmp_path / "w"
    (root / "src").mkdir(parents=True)
    (root / "a.txt").write_text("a")
    current = [root]

    async def list_roots(context: Any) -> ListRootsResult:
        return await roots(*current)(context)

    async def work(served: Served) -> None:
        client = await served.connect(list_roots_callback=list_roots)
        await call(client, "read_text_file", path="a.txt")
        current[:] = [root / "src"]
        with pytest.warns(match="deprecated"):
            await client.send_roots_list_changed()
        await fail(client, "read_text_file", path="a.txt")

    run(root, work)
