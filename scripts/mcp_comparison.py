"""The reference filesystem server and `wink mcp` side by side, on one script of calls.

    python -m scripts.mcp_comparison    # writes benchmarks/results/mcp_comparison.md

Both servers run as processes with pipes, each on its own copy of the same directory. Compared
are success, what the result says, and the files afterwards.
"""

import base64
import hashlib
import json
import re
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.mcp_cases import CASES, FILES, LINKS, Case
from scripts.mcp_process import ServerProcess
from scripts.node_packages import REFERENCE_SERVER, explain_missing, find_node_program
from scripts.steps import ROOT

PAGE = ROOT / "benchmarks" / "results" / "mcp_comparison.md"

Result = Mapping[str, Any]
Meaning = Callable[[Result, str], object]


@dataclass(frozen=True, slots=True)
class Effect:
    """What a call did: what its result means, and the files that are there afterwards."""

    result: Result
    meaning: object
    files: Mapping[str, object]

    @property
    def failed(self) -> bool:
        """Whether the call failed."""
        return bool(self.result.get("isError"))

    @property
    def text(self) -> str:
        """The text of the result."""
        return _text(self.result)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One call on both servers."""

    case: Case
    reference: Effect
    ours: Effect

    @property
    def is_same(self) -> bool:
        """Whether both did the same, and said the same."""
        return (self.reference.meaning, self.reference.files) == (
            self.ours.meaning,
            self.ours.files,
        )


def compare(cases: Sequence[Case] = CASES) -> list[Comparison]:
    """Send the calls to both servers.

    Raises:
        FileNotFoundError: The reference server is not installed.
    """
    reference = find_node_program(REFERENCE_SERVER)
    if reference is None:
        raise FileNotFoundError(explain_missing(REFERENCE_SERVER))
    with tempfile.TemporaryDirectory(prefix="wink-comparison-") as name:
        place = Path(name).resolve()
        theirs = _effects(place / "reference", reference, cases)
        ours = _effects(place / "ours", our_command(), cases)
    return [Comparison(*each) for each in zip(cases, theirs, ours, strict=True)]


def our_command() -> list[str]:
    """Return the words that start our server on the directory that follows them."""
    return [sys.executable, "-m", "weakincentives", "mcp", "--in-place", "--sandbox", "none"]


def _effects(place: Path, command: Sequence[str], cases: Sequence[Case]) -> list[Effect]:
    """Serve `place/root` and run each case in a directory of its own below it."""
    root = place / "root"
    root.mkdir(parents=True)
    (place / "root-evil").mkdir()
    for secret in (place / "secret.txt", place / "root-evil" / "secret.txt"):
        secret.write_text("secret\n")
    heres = [root / f"case{number}" for number in range(len(cases))]
    for here, case in zip(heres, cases, strict=True):
        _fill(here, case.files)
    # nothing that either writes elsewhere counts
    state = {"XDG_STATE_HOME": str(place / "state"), "HOME": str(place / "home")}
    with ServerProcess([*command, str(root)], environment=state) as server:
        server.initialize()
        return [_effect(server, *each) for each in zip(heres, cases, strict=True)]


def _fill(here: Path, files: Mapping[str, bytes]) -> None:
    for path, content in {**FILES, **files}.items():
        (here / path).parent.mkdir(parents=True, exist_ok=True)
        (here / path).write_bytes(content)
    for path, target in LINKS.items():
        (here / path).symlink_to(target)
    (here / "script.sh").chmod(0o755)


def _effect(server: ServerProcess, here: Path, case: Case) -> Effect:
    arguments = _resolve(case.arguments, str(here), str(here.parent))
    result = server.call(case.tool, **arguments)
    failed = bool(result.get("isError"))
    meaning = "failed" if failed else _meaning(case)(result, str(here))
    return Effect(result, meaning, dict(_look(here)))


def _meaning(case: Case) -> Meaning:
    """Return what finds the meaning of a result; the order of a listing counts on request."""
    return _sizes if "sortBy" in case.arguments else MEANINGS.get(case.tool, _done)


def _resolve(value: Any, here: str, root: str) -> Any:
    """Put the directories into the texts of some arguments."""
    text = json.dumps(value).replace("HERE", here).replace("ROOT", root)
    return json.loads(text)


def _look(here: Path) -> Iterator[tuple[str, object]]:
    """Yield every path that a call could have changed, with its kind, mode and content."""
    for base in (here, here.parent.parent):
        for path in sorted(base.rglob("*") if base == here else base.glob("*")):
            if path.name in ("state", "home"):
                continue
            found = path.lstat()
            content = ""
            if path.is_symlink():
                content = str(path.readlink())
            elif path.is_file():
                content = hashlib.sha256(path.read_bytes()).hexdigest()
            kind = stat.filemode(found.st_mode)
            yield (
                str(path.relative_to(here.parent.parent if base != here else here)),
                (
                    kind,
                    content,
                ),
            )


def _text(result: Result) -> str:
    return "".join(each.get("text", "") for each in result["content"])


def _done(_: Result, __: str) -> object:
    """A change says what it did in its own words: the files are what counts."""
    return "done"


def _content(result: Result, _: str) -> object:
    return result["structuredContent"]["content"]


def _contents(result: Result, _: str) -> object:
    text = _text(result)
    return sorted(path for path, content in FILES.items() if content and _occurs(content, text))


def _occurs(content: bytes, text: str) -> bool:
    lines = content.decode("latin-1").splitlines()
    return all(line in text for line in lines)


def _diff(result: Result, _: str) -> object:
    lines = _text(result).splitlines()
    return [each for each in lines if re.match(r"[+-](?![+-]{2} )", each)]


def _listing(result: Result, _: str) -> object:
    """The names of a listing, directories marked; ours come first."""
    return sorted(each for line in _text(result).splitlines() for each in _entry(line))


def _entry(line: str) -> list[str]:
    """The name in a line of a listing: `[DIR] name` there, `name/` or `name (9 bytes)` here."""
    if match := re.match(r"\[(DIR|FILE)\] (.*?)(?: +\d[\d.]* [KMGT]?B)?\s*$", line):
        return [match[2] + ("/" if match[1] == "DIR" else "")]
    match = re.match(r"\s*(.*?)(?: -> .*| \([\d,]+ bytes?\)|(/))$", line)
    return [match[1] + (match[2] or "")] if match else []


def _sizes(result: Result, _: str) -> object:
    return [each for line in _text(result).splitlines() for each in _entry(line)]


def _tree(result: Result, _: str) -> object:
    text = _text(result)
    return sorted(_walk(json.loads(text)) if text.startswith("[") else _outline(text))


def _walk(entries: Iterable[Mapping[str, Any]], base: str = "") -> Iterator[str]:
    for entry in entries:
        yield base + entry["name"] + ("/" if entry["type"] == "directory" else "")
        yield from _walk(entry.get("children", ()), f"{base}{entry['name']}/")


def _outline(text: str) -> Iterator[str]:
    above: list[str] = []
    for line in text.splitlines():
        for name in _entry(line):
            depth = (len(line) - len(line.lstrip())) // 2
            above[depth:] = [name]
            yield "".join(above)


def _found(result: Result, here: str) -> object:
    """The paths of a search: absolute there, relative to the root here."""
    mark = Path(here).name + "/"
    return sorted(
        line.split(mark, 1)[1].rstrip("/")
        for line in _text(result).splitlines()
        if line.startswith((here, mark))
    )


def _information(result: Result, _: str) -> object:
    facts = dict(line.split(": ", 1) for line in _text(result).splitlines() if ": " in line)
    is_directory = facts.get("isDirectory") == "true" or "directory" in facts.values()
    size = None if is_directory else facts.get("size", "").partition(" ")[0]
    return is_directory, size, facts.get("permissions")


def _media(result: Result, _: str) -> object:
    [block] = result["content"]
    block = block.get("resource", block)
    data = base64.b64decode(block.get("data") or block.get("blob") or "")
    return block.get("mimeType"), hashlib.sha256(data).hexdigest()


def _directories(result: Result, here: str) -> object:
    return str(Path(here).parent) in _text(result)


MEANINGS: Mapping[str, Meaning] = {
    "read_text_file": _content,
    "read_file": _content,
    "read_multiple_files": _contents,
    "read_media_file": _media,
    "edit_file": _diff,
    "list_directory": _listing,
    "list_directory_with_sizes": _listing,
    "directory_tree": _tree,
    "search_files": _found,
    "get_file_info": _information,
    "list_allowed_directories": _directories,
}


# --- the page ---

_HEAD = """\
# Beside the reference server

[`wink mcp`](../../docs/mcp.md) has the tools of the reference filesystem server of MCP, with the
same names and arguments. {total} calls were sent to both over pipes, each in a directory of its
own with the same files: reading, escapes, writing, editing, moving and finding, with CRLF, byte
order marks, Latin-1, binary files, links, huge files and wrong arguments. Compared were success,
what the result says, and every file afterwards. {same} calls had the same outcome. In the other
{other}, listed below, ours does something else on purpose.

Four things hold for every call. The text of a result is worded for a model: lines have numbers,
and a refusal says what to do next. `structuredContent` has the text of a file without numbers, as
the reference server sends it. Every change can be undone, which the reference server cannot do.
The roots of a client replace the directory of the reference server; ours only restricts itself
to them.

`python -m scripts.mcp_comparison` writes this file, with {name} {version}. `make test` sends the
calls again.
"""


def render(comparisons: Sequence[Comparison]) -> str:
    """Return the page."""
    same = [each for each in comparisons if each.is_same]
    other = len(comparisons) - len(same)
    name, version = "@modelcontextprotocol/server-filesystem", _version()
    parts = [
        _HEAD.format(
            total=len(comparisons), same=len(same), other=other, name=f"`{name}`", version=version
        )
    ]
    for topic in dict.fromkeys(each.case.topic for each in comparisons):
        chosen = [each for each in comparisons if each.case.topic == topic]
        parts.append("\n".join(_render_topic(topic, chosen)))
    return "\n".join(parts)


def _render_topic(topic: str, comparisons: Sequence[Comparison]) -> Iterator[str]:
    yield f"## {topic}\n"
    equal = "; ".join(each.case.title for each in comparisons if each.is_same)
    yield f"The same: {equal}.\n"
    yield "| call | `wink mcp` |\n|---|---|"
    for each in comparisons:
        if not each.is_same:
            yield f"| `{each.case.tool}`: {each.case.title} | {each.case.why} |"
    yield ""


def _version() -> str:
    pins = json.loads((ROOT / "scripts" / "node" / "package.json").read_text())
    return pins["dependencies"]["@modelcontextprotocol/server-filesystem"]


def main() -> None:
    """Compare, print what is not explained, and write the page."""
    comparisons = compare()
    for each in comparisons:
        if each.is_same == bool(each.case.why):
            problem = "is explained, but the same" if each.is_same else "is not explained"
            print(f"{each.case.tool}, {each.case.title}: {problem}")
            print(f"  there: {each.reference.meaning!r:.200}\n  here:  {each.ours.meaning!r:.200}")
    PAGE.write_text(render(comparisons))


if __name__ == "__main__":
    main()
