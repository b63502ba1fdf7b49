"""The documentation site: the Markdown of the repository and the API reference, as HTML.

The pages keep their places relative to each other, so that a link works on a forge and in the
site. The navigation is the list of links in `docs/index.md`: a page is in both, or in neither.
"""

import json
import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import chain
from pathlib import Path
from urllib.parse import unquote, urlsplit

from scripts.api_pages import FOLDER, pages
from scripts.environments import Environment
from scripts.steps import ROOT, StepFailedError, output_of

INDEX = "docs/index.md"
MAX_SHOWN = 20

# a page by its title, or a section with what is below it
Entry = dict[str, "str | list[Entry]"]

_SETTINGS = ROOT / "scripts" / "site.toml"
_WORKER = ROOT / "scripts" / "iframe-worker.js"
_STYLE = ROOT / "scripts" / "site.css"
_FENCE = re.compile(r"(?m)^(```\w+) .+$")
_LINK = re.compile(r"\[([^\]]+)\]\(([^)#]+\.md)\)")


def build(tools: Environment, project: Path, site: Path) -> None:
    """Build the site in `site`, with `project` as the place to work in.

    Raises:
        StepFailedError: zensical failed, or a link of the site leads nowhere.
    """
    shutil.rmtree(project, ignore_errors=True)
    generated = {f"docs/{name}": text for name, text in pages().items()}
    _copy_documents(project / "docs")
    for name, text in generated.items():
        _write(project / "docs" / name, text)
    names = sorted(name for name in generated if name.startswith(f"docs/{FOLDER}/"))
    entries = navigation((ROOT / INDEX).read_text(), names)
    settings = _SETTINGS.read_text().replace("nav = []", f"nav = {as_toml(entries)}")
    _write(project / "zensical.toml", settings)
    output_of([tools.program("zensical"), "build", "--clean", "-f", project / "zensical.toml"])
    if broken := sorted(broken_links(project / "site")):
        shown = "\n".join(broken[:MAX_SHOWN])
        raise StepFailedError(f"{len(broken)} links of the site lead nowhere:\n{shown}")
    shutil.rmtree(site, ignore_errors=True)
    shutil.move(project / "site", site)


def navigation(index: str, api: list[str]) -> list[Entry]:
    """Return the entries of an index page: its headings are sections, its links are pages.

    The page of the API reference becomes a section, with the pages `api` below it.
    """
    top: list[Entry] = []
    levels: dict[int, list[Entry]] = {1: top}
    for line in index.splitlines():
        if heading := re.match(r"(##+) (.+)", line):
            level = len(heading[1])
            section: list[Entry] = []
            levels = {key: value for key, value in levels.items() if key < level}
            levels[max(levels)].append({heading[2]: section})
            levels[level] = section
        for title, target in _LINK.findall(line):
            page = _resolve(target)
            entry: Entry = {title: page}
            if page == f"docs/{FOLDER}.md":
                entry = {title: [{"All modules": page}, *({_module(each): each} for each in api)]}
            levels[max(levels)].append(entry)
    return [_collapse(entry) for entry in top]


def _collapse(entry: Entry) -> Entry:
    """Return an entry in which a section with one page is that page."""
    [(title, value)] = entry.items()
    if isinstance(value, str):
        return entry
    inside = [_collapse(each) for each in value]
    pages_below = [page for each in inside for page in each.values() if isinstance(page, str)]
    return {title: pages_below[0] if len(inside) == len(pages_below) == 1 else inside}


def as_toml(entries: list[Entry]) -> str:
    """Return entries as a TOML value; a JSON string is a TOML string."""
    items: list[str] = []
    for title, value in chain.from_iterable(entry.items() for entry in entries):
        inside = json.dumps(value) if isinstance(value, str) else as_toml(value)
        items.append(f"{{ {json.dumps(title)} = {inside} }}")
    return f"[{', '.join(items)}]"


def broken_links(site: Path) -> Iterator[str]:
    """Yield the links of a built site to pages, files and anchors that are not there.

    404.html is left out: a server shows it at any address, so its links are absolute.
    """
    found = {path: _Page(path) for path in site.rglob("*.html") if path.name != "404.html"}
    for path, page in found.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchors = found[target].anchors if target in found else None
            known = anchors is None or not parts.fragment or unquote(parts.fragment) in anchors
            if not target.exists() or not known:
                yield f"{path.relative_to(site)}: {link}"


class _Page(HTMLParser):
    """The links and anchors of one HTML page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect what a tag links to, and the anchor that it is."""
        for name, value in attrs:
            if value and name in ("href", "src") and tag != "base":
                self.links.add(value)
            if value and name in ("id", "name"):
                self.anchors.add(value)


def _copy_documents(target: Path) -> None:
    for folder in ("docs", "benchmarks/results"):
        shutil.copytree(ROOT / folder, target / folder)
    for path in ROOT.glob("*.md"):
        shutil.copyfile(path, target / path.name)
    for path in target.rglob("*.md"):
        path.write_text(as_fences(path.read_text()))
    for asset in (_WORKER, _STYLE):
        _write(target / "assets" / asset.name, asset.read_text())


def as_fences(text: str) -> str:
    """Return a page without what an opening fence says beside its language.

    The tests of the documents read that; the site takes such a line for text.
    """
    return _FENCE.sub(r"\1", text)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _resolve(target: str) -> str:
    """Return the path of a link in `docs/index.md`, from the project's directory."""
    return target.removeprefix("../") if target.startswith("../") else f"docs/{target}"


def _module(page: str) -> str:
    return Path(page).name.removesuffix(".md")
