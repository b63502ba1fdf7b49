"""The documents: every example runs, every link leads somewhere, every public name is listed.

A block that cannot run says so, with the reason, on its opening line:

    ```python no-run: needs a network
"""

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote

import click
import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from scripts.public_names import public_modules
from scripts.site import INDEX, navigation
from scripts.steps import ROOT
from weakincentives.cli.main import COMMANDS, wink

_OPENING = re.compile(r"python( no-run: \S.*)?")


@dataclass(frozen=True)
class Example:
    """A block of Python in a document; `line` is where its code begins."""

    document: Path
    line: int
    info: str
    code: str

    @property
    def runs(self) -> bool:
        return self.info == "python"


def documents() -> list[Path]:
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def tokens(text: str) -> Iterator[Token]:
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        yield token
        yield from token.children or ()


def examples(document: Path) -> list[Example]:
    return [
        Example(document, token.map[0] + 1, token.info.strip(), token.content)
        for token in tokens(document.read_text())
        if token.type == "fence" and token.map and token.info.lower().startswith("py")
        if token.info.strip() != "pyi"
    ]


def run(example: Example, namespace: dict[str, object]) -> None:
    # blank lines before the code make a traceback show the line in the document
    padded = "\n" * example.line + example.code
    exec(compile(padded, example.document, "exec"), namespace)


def anchors(document: Path) -> set[str]:
    """Return the anchors that Markdown viewers give to a document's headings."""
    found: set[str] = set()
    stream = list(tokens(document.read_text()))
    for opening, inline in pairwise(stream):
        if opening.type == "heading_open":
            words = "".join(each.content for each in inline.children or () if each.content)
            found.add(re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-"))
    return found


def broken_links(document: Path) -> Iterator[str]:
    for token in tokens(document.read_text()):
        target = str(token.attrs.get("href") or token.attrs.get("src") or "")
        if not target or re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = unquote(target).partition("#")
        other = (document.parent / path).resolve() if path else document
        if not other.exists() or (anchor and anchor not in anchors(other)):
            yield target


def names(paths: list[Path]) -> list[str]:
    return [path.relative_to(ROOT).as_posix() for path in paths]


@pytest.mark.parametrize("document", names([each for each in documents() if examples(each)]))
def test_the_python_of_a_document_runs_from_top_to_bottom(
    document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    module = ModuleType("document")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # dataclasses look themselves up
    for example in examples(ROOT / document):
        assert _OPENING.fullmatch(example.info), f"write ```python, not ```{example.info}"
        if example.runs:
            run(example, vars(module))


@pytest.mark.parametrize("document", names(documents()))
def test_the_links_of_a_document_lead_somewhere(document: str):
    assert list(broken_links(ROOT / document)) == []


def test_the_list_of_public_names_is_that_of_the_packages():
    _, listed = (ROOT / "docs/stability.md").read_text().split("\n- **errors**:")
    public = {name for each in public_modules() for name in each.public}
    assert set(re.findall(r"`(\w+)`", listed)) == public


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_and_its_options_are_explained_in_prose(name: str):
    command = wink.get_command(click.Context(wink), name)
    assert command is not None
    options = {option for parameter in command.params for option in parameter.opts}
    wanted = {f"wink {name}", *(option for option in options if option.startswith("--"))}
    prose = "\n".join(each.read_text() for each in documents())
    unexplained = sorted(each for each in wanted if each not in prose)
    assert not unexplained, f"explain in docs/: {', '.join(unexplained)}"


def test_every_document_is_in_the_index():
    listed = json.dumps(navigation((ROOT / INDEX).read_text(), []))
    missing = [name for name in names(documents()) if name != INDEX and f'"{name}"' not in listed]
    assert not missing, f"link from {INDEX}: {', '.join(missing)}"


def test_the_tree_for_coding_agents_is_that_of_the_sources():
    """Every path in AGENTS.md exists, and every package is there."""
    text = (ROOT / "AGENTS.md").read_text()
    layout = next(each.content for each in tokens(text) if each.content.startswith("src/"))
    above, named = list[str](), set[str]()
    for line in layout.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        names = re.split(r"\s{2,}", line.strip())[0].split()  # what comes after is a description
        named |= {"".join([*above[:depth], name]) for name in names}
        above[depth:] = names[:1]
    assert not [path for path in named if not (ROOT / path).exists()]
    package = ROOT / "src" / "weakincentives"
    packages = {f"{each.parent.name}/" for each in package.glob("*/__init__.py")}
    for name in packages | {each.name for each in package.glob("[!_]*.py")}:
        assert any(path.startswith(f"src/weakincentives/{name}") for path in named), name


def test_a_block_is_run_unless_it_says_why_not(tmp_path: Path):
    document = tmp_path / "page.md"
    document.write_text(
        "# T\n\n```python\nx = 1\n```\n\n```python no-run: needs a network\nx = 2\n```\n"
        "\n- in a list\n\n  ```python\n  y = x\n  ```\n\n```sh\nls\n```\n"
    )
    found = examples(document)
    assert [(each.line, each.runs, each.code) for each in found] == [
        (3, True, "x = 1\n"),
        (7, False, "x = 2\n"),
        (13, True, "y = x\n"),
    ]
    namespace: dict[str, object] = {}
    for each in found:
        run(each, namespace)
    assert namespace["y"] == 2


@pytest.mark.parametrize("opening", ["python no-run", "python skip", "py", "Python"])
def test_an_opening_line_that_would_hide_a_block_is_refused(opening: str):
    assert not _OPENING.fullmatch(opening)


def test_a_failing_example_is_told_with_its_line(tmp_path: Path):
    document = tmp_path / "page.md"
    document.write_text("# T\n\n```python\n\nraise ValueError(7)\n```\n")
    with pytest.raises(ValueError, match="7") as caught:
        run(examples(document)[0], {})
    assert caught.traceback[-1].lineno + 1 == 5


def test_a_broken_link_is_found(tmp_path: Path):
    (tmp_path / "there.md").write_text("# Two words, `code`\n")
    document = tmp_path / "page.md"
    document.write_text(
        "# Here\n[a](there.md) [b](there.md#two-words-code) [c](#here) [d](https://x.test/)\n"
        "[e](gone.md) [f](there.md#gone) [g](#gone)\n"
    )
    assert list(broken_links(document)) == ["gone.md", "there.md#gone", "#gone"]


def _tree_entries(text: str) -> Iterator[str]:
    """Yield the paths that the tree in AGENTS.md names, relative to the project."""
    block = text.split("## Layout", 1)[1].split("```")[1]
    parents: list[str] = []
    for line in block.strip("\n").splitlines():
        depth = (len(line) - len(line.lstrip(" "))) // 2
        names = re.match(r"\s*((?:[\w/.]+/ ?|[\w]+\.py)+)", line)
        assert names is not None, line
        found = names[1].split()
        del parents[depth:]
        yield from ("".join((*parents, each)) for each in found)
        parents.append(found[-1])


def test_the_tree_for_agents_is_the_tree_on_disk() -> None:
    entries = [each.rstrip("/") for each in _tree_entries((ROOT / "AGENTS.md").read_text())]
    assert [each for each in entries if not (ROOT / each).exists()] == []
    sources = ROOT / "src/weakincentives"
    for each in sources.iterdir():
        path = each.relative_to(ROOT).as_posix()
        if each.suffix != ".typed" and not each.name.startswith("__"):
            assert any(entry == path or entry.startswith(f"{path}/") for entry in entries), path


def test_every_page_has_the_same_layers() -> None:
    contract = re.search(r"layers = \[(.*?)\]", (ROOT / "pyproject.toml").read_text(), re.DOTALL)
    assert contract is not None
    layers = re.findall(r'"([^"]+)"', contract[1])
    contributing = (ROOT / "CONTRIBUTING.md").read_text().split("## The layers")[1].split("```")[1]
    assert contributing.split("\n")[1:-1] == layers
    architecture = (ROOT / "ARCHITECTURE.md").read_text().split("## The layers")[1].split("```")[1]
    shown = [re.split(r"\s{2,}", line.strip())[0] for line in architecture.strip().splitlines()]
    assert shown == layers
