"""`--attach`: texts, pictures and standard input beside the task."""

import base64
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.adapters.chat_server import Server, says, serving
from tests.cli.workplace import Done, Script, Wink

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
Ask = Callable[..., tuple[Done, Server]]


@pytest.fixture
def ask(wink: Wink, project: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Return what runs a task with a server, and returns what it was asked."""
    monkeypatch.setenv("NO_PROXY", "*")

    def run(*options: str | Path) -> tuple[Done, Server]:
        with serving(says("Done."), says("Done again.")) as server:
            done = wink(
                "run", "review this", "--workspace", project, "--model", "openai:gpt-test",
                "--base-url", server.url, "--sandbox", "none", *options,
            )  # fmt: skip
            assert done.code == 0, done.err
            resumed = wink("resume", "last", "and now?", "--model", "openai:gpt-test",
                           "--base-url", server.url, "--sandbox", "none")  # fmt: skip
            assert resumed.code == 0, resumed.err
        return done, server

    return run


def test_texts_and_pictures_reach_the_model_with_their_names_and_survive_a_resume(
    ask: Ask, wink: Wink, tmp_path: Path
):
    notes, picture = tmp_path / "my notes.txt", tmp_path / "shot.png"
    notes.write_text("Look </attachment> here.\n")
    picture.write_bytes(PNG)
    done, server = ask("--attach", notes, "--attach", picture)
    assert f"attached: {picture}\n" in done.err
    content = server.requests[0].body["messages"][-1]["content"]
    assert [each["type"] for each in content] == ["text", "image_url"]
    text = content[0]["text"]
    assert text.startswith(f'review this\n\nAttached:\n\n"{notes}":\n<attachment ')
    assert "Look &lt;/attachment> here." in text
    assert text.endswith(f"[image {picture}, 70 B]")
    assert content[1]["image_url"]["url"].startswith("data:image/png;base64,iVBORw0KGgo")
    # the second request is that of the resumed run
    again = server.requests[1].body["messages"]
    assert again[1]["content"] == content
    assert again[-1]["content"] == "and now?"
    assert f"[image {picture}, 70 B]" in wink("show", "last", "2", "--full").out


def test_standard_input_is_attached_only_if_asked_for(ask: Ask, monkeypatch: pytest.MonkeyPatch):
    def pipe() -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"-old\n+new\n")))

    pipe()
    _, server = ask("--attach", "-")
    assert '"standard input":\n<attachment ' in server.requests[0].body["messages"][-1]["content"]
    assert "-old\n+new\n" in server.requests[0].body["messages"][-1]["content"]
    pipe()
    _, server = ask()
    assert server.requests[0].body["messages"][-1]["content"] == "review this"


def test_the_output_of_a_command_can_be_attached_as_shells_offer_it(ask: Ask):
    reader, writer = os.pipe()
    os.write(writer, b"from a pipe\n")
    os.close(writer)
    _, server = ask("--attach", f"/dev/fd/{reader}")
    os.close(reader)
    assert "from a pipe" in server.requests[0].body["messages"][-1]["content"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"%PDF-1.7\n", "PDF is not supported"),
        (b"\x7fELF\0\0", "neither UTF-8 text nor a PNG, JPEG, GIF or WebP picture"),
        (b"\xff\xfe", "neither UTF-8 text"),
        (b"x" * 400_001, "400 kB of text are more than the 400 kB that fit"),
        (PNG + bytes(5 * 1024 * 1024), "larger than 5.2 MB"),
        (None, "No such file or directory"),
    ],
)
def test_what_cannot_be_sent_is_refused_before_a_copy(
    content: bytes | None,
    problem: str,
    wink: Wink,
    project: Path,
    script: Script,
    tmp_path: Path,
    copies: Callable[[], list[Path]],
):
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)
    done = wink("run", "x", "--workspace", project, "--model", script("Done."), "--attach", path)
    assert (done.code, copies()) == (2, [])
    assert problem in done.err


def test_standard_input_is_not_read_twice(
    wink: Wink, project: Path, script: Script, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a")))
    options = ("--workspace", project, "--model", script("Done."))
    done = wink("run", "x", *options, "--attach", "-", "--attach", "-")
    assert (done.code, "Standard input is read once" in done.err) == (2, True)
