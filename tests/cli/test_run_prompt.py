"""The prompt of `wink run`: who, how to work, how to verify, how to end; only what is there."""

from weakincentives.cli.run.options import NO_COMMANDS, RunSandbox
from weakincentives.cli.run.prompt import create_prompt
from weakincentives.contrib.tools import FilesystemSection
from weakincentives.filesystem import InMemoryFilesystem
from weakincentives.runtime.session import Session


def render(sandbox: RunSandbox) -> str:
    section = FilesystemSection(filesystem=InMemoryFilesystem(), session=Session())
    with create_prompt(section, sandbox, has_digest=False) as prompt:
        return prompt.render().text


def test_the_parts_come_in_order():
    text = render(RunSandbox("bubblewrap"))
    parts = (
        "You are a software engineer.",
        "Do what the task asks, and only that.",
        "run the tests that cover it",
        "Commands have no network.",
        "answer in a few sentences",
        "Your workspace contains the files to work on.",
        "in one reply",
    )
    places = [text.index(each) for each in parts]
    assert places == sorted(places)
    assert text.count("workspace is a copy") == 1


def test_nothing_is_said_about_what_is_not_there():
    text = render(NO_COMMANDS)
    assert "You cannot run commands. Check your changes by reading them again." in text
    assert "tests" not in text
    assert "network" not in text
    assert "digest" not in text


def test_what_to_remove_does_not_contradict_what_to_leave():
    text = render(NO_COMMANDS)
    assert "Remove what your own change makes unnecessary" in text
    assert "leave everything else as it is" in text
    assert "Delete" not in text
    assert "no longer need" not in text
