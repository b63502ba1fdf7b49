"""Digest real projects, and check the digests: `python -m scripts.digest_projects DIRECTORY`.

The projects are downloaded from PyPI, npm and Debian into DIRECTORY. For each, the first command
of each purpose is compared with what its contributors use, the outlines with another parser, and
the repository map with that of aider at the same token budget. With `--aider PYTHON`, a Python
that has aider-chat; with `--typescript DIRECTORY`, the compiler's package; with `--run`, the
commands of three projects are run. Prints Markdown tables.
"""

import argparse
import json
import re
import shutil
import subprocess
import tarfile
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scripts.digest_reference import (
    Found,
    central_files,
    ctags_definitions,
    include_uses,
    name_uses,
    python_definitions,
    python_uses,
    typescript,
)
from weakincentives.contrib.digest import (
    DigestCache,
    digest_workspace,
    estimate_tokens,
    repo_map,
)
from weakincentives.contrib.digest.definitions import MAX_DEFINITIONS
from weakincentives.contrib.digest.inventory import MAX_READ
from weakincentives.contrib.digest.languages import language_of
from weakincentives.contrib.digest.scanner import scan
from weakincentives.contrib.digest.treesitter import outline_source
from weakincentives.filesystem import HostFilesystem

MAP_TOKENS = 2_000
MAX_CHECKED = 400  # files of a project whose outlines are checked
POOL = "http://deb.debian.org/debian/pool/main/"
HEADER = (
    "| project | files | commands | outline right | outline complete | central | aider's | first"
    " | again | aider's | tokens | real tokens |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
)
AIDER = """
import glob, json, os, sys, time
import litellm
os.environ["TIKTOKEN_CACHE_DIR"] = os.path.join(
    os.path.dirname(litellm.__file__), "litellm_core_utils", "tokenizers")
import tiktoken
from aider.repomap import RepoMap
class Console:
    def read_text(self, path):
        try:
            return open(path, encoding="utf-8").read()
        except (OSError, UnicodeError):
            return None
    def tool_output(self, *a, **k): pass
    tool_warning = tool_error = tool_output
class Model:
    def token_count(self, text): return -(-len(text.encode()) // 3)
job = json.load(sys.stdin)
files = [os.path.join(job["root"], each) for each in job["files"]]
begun, cpu = time.perf_counter(), time.process_time()
repo = RepoMap(map_tokens=job["tokens"], root=job["root"], main_model=Model(), io=Console(),
               map_mul_no_files=1, refresh="always")
text = repo.get_repo_map([], files) or ""
wall, cpu = time.perf_counter() - begun, time.process_time() - cpu
count = lambda each: len(tiktoken.get_encoding("cl100k_base").encode(each, disallowed_special=()))
print(json.dumps({"text": text, "wall": wall, "cpu": cpu, "tokens": count(text),
                  "ours": count(job["text"])}))
"""


@dataclass(frozen=True, slots=True)
class Sample:
    """A project, where it comes from, and the first commands that its contributors use."""

    name: str
    kind: str
    registry: str
    where: str
    commands: Mapping[str, str]
    runs: tuple[str, ...] = ()
    """Purposes whose commands are run."""


SAMPLES = (
    Sample(
        "click",
        "Python",
        "pypi",
        "click==8.3.0",
        {"test": "uv run pytest", "types": "uv run mypy", "install": "uv sync"},
        ("install", "test"),
    ),
    Sample(
        "django",
        "Python, 6,884 files",
        "pypi",
        "django==5.2.6",
        {"test": "python tests/runtests.py", "format": "black ."},
    ),
    Sample(
        "eslint",
        "JavaScript",
        "npm",
        "eslint@9.36.0",
        {"test": "npm test", "lint": "npm run lint"},
    ),
    Sample(
        "rxjs",
        "TypeScript",
        "npm",
        "rxjs@7.8.2",
        {"test": "npm test", "lint": "npm run lint", "build": "npm run compile"},
    ),
    Sample(
        "commander",
        "JavaScript",
        "debian",
        "n/node-commander/node-commander_9.4.1.orig.tar.gz",
        {"test": "npm test", "install": "npm install", "lint": "npm run lint"},
        ("install", "test"),
    ),
    Sample(
        "ruff",
        "Rust, 5,217 files",
        "pypi",
        "ruff==0.12.0",
        {"test": "cargo test --workspace", "format": "cargo fmt"},
    ),
    Sample(
        "pydantic-core",
        "Rust and Python",
        "pypi",
        "pydantic-core==2.33.2",
        {"test": "make test", "lint": "make lint", "format": "make format"},
    ),
    Sample(
        "redis",
        "C",
        "debian",
        "r/redis/redis_7.0.15.orig.tar.gz",
        {"test": "make test", "build": "make all"},
    ),
    Sample(
        "zlib",
        "C",
        "debian",
        "z/zlib/zlib_1.2.13.dfsg.orig.tar.bz2",
        {"build": "./configure && make", "test": "make check"},
        ("build", "test"),
    ),
    Sample(
        "fmt",
        "C++",
        "debian",
        "f/fmtlib/fmtlib_9.1.0+ds1.orig.tar.gz",
        {"build": "cmake -S . -B build && cmake --build build", "test": "ctest --test-dir build"},
    ),
    Sample(
        "gin",
        "Go",
        "debian",
        "g/golang-github-gin-gonic-gin/golang-github-gin-gonic-gin_1.8.1.orig.tar.gz",
        {"test": "make test", "lint": "make lint", "format": "make fmt"},
    ),
    Sample(
        "monolog",
        "PHP",
        "debian",
        "p/php-monolog/php-monolog_2.9.1.orig.tar.xz",
        {"test": "composer test"},
    ),
    Sample(
        "hyphen-ru", "nothing familiar", "debian", "h/hyphen-ru/hyphen-ru_20030310.orig.tar.gz", {}
    ),
)


@dataclass(slots=True)
class Outcome:
    """What was measured for one project."""

    files: int = 0
    cold: float = 0.0
    warm: float = 0.0
    tokens: int = 0
    found: float | None = None
    exact: float | None = None
    share: float | None = None
    aider_share: float | None = None
    aider_seconds: float | None = None
    aider_tokens: int | None = None
    real_tokens: int | None = None
    commands: dict[str, bool] = field(default_factory=dict[str, bool])
    runs: dict[str, str] = field(default_factory=dict[str, str])


def download(sample: Sample, directory: Path) -> Path:
    """Return the directory with the sources of a project; download them if they are missing."""
    target = directory / "src" / sample.name
    if target.exists():
        return target
    archives = directory / "archives"
    archives.mkdir(parents=True, exist_ok=True)
    if sample.registry == "npm":
        done = subprocess.run(
            ["npm", "pack", "--silent", sample.where],
            cwd=archives,
            check=True,
            capture_output=True,
            text=True,
        )
        archive = archives / done.stdout.strip()
    else:
        url = POOL + sample.where if sample.registry == "debian" else _sdist_url(sample.where)
        archive = archives / url.rpartition("/")[2]
        archive.write_bytes(_fetch(url))
    unpacked = directory / "unpacked" / sample.name
    with tarfile.open(archive) as packed:
        packed.extractall(unpacked, filter="data")
    target.parent.mkdir(exist_ok=True)
    inside = list(unpacked.iterdir())
    (inside[0] if len(inside) == 1 else unpacked).rename(target)
    return target


def measure(sample: Sample, root: Path, options: argparse.Namespace) -> Outcome:
    """Digest a project and compare it with what others say about it."""
    outcome = Outcome()
    cache = DigestCache()
    with HostFilesystem(root, read_only=True) as fs:
        begun = time.process_time()
        digest = digest_workspace(fs, cache=cache)
        outcome.cold = time.process_time() - begun
        begun = time.process_time()
        again = digest_workspace(fs, cache=cache)
        outcome.warm = time.process_time() - begun
        if again.to_json() != digest.to_json():
            raise AssertionError(f"two digests of {sample.name} differ")
        found = repo_map(fs, tokens=MAP_TOKENS, cache=cache)
    outcome.files, outcome.tokens = digest.files, digest.tokens
    first: dict[str, str] = {}
    for each in digest.commands:
        first.setdefault(each.purpose, each.command)
    expected = sample.commands or dict.fromkeys(first, "")
    outcome.commands = {name: first.get(name) == each for name, each in expected.items()}
    uses = check_outlines(root, options.typescript, outcome)
    central = central_files(uses)
    if central:
        outcome.share = len(set(central) & set(found.files)) / len(central)
    if options.aider:
        compare_with_aider(options.aider, root, digest.text, central, outcome)
    if options.run:
        outcome.runs = {each: run_command(first[each], root) for each in sample.runs}
    return outcome


def check_outlines(root: Path, compiler: Path | None, outcome: Outcome) -> Counter[str]:
    """Compare outlines with another parser; return how many files use each file."""
    uses: Counter[str] = Counter()
    ours: Found = {}
    main: Found = {}
    every: Found = {}
    for group, paths in _sources(root).items():
        definitions, everything, more = refer(group, root, paths, compiler)
        uses += more
        for path in paths[:: max(1, len(paths) // MAX_CHECKED)]:
            outline = outline_source((root / path).read_bytes(), language_of(path).family)
            if path in definitions and len(outline) < MAX_DEFINITIONS:
                ours[path] = {(each.name.rpartition("::")[2], each.line) for each in outline}
                main[path], every[path] = definitions[path], everything[path]
    _score(ours, main, every, outcome)
    return uses


def refer(
    group: str, root: Path, paths: Sequence[str], compiler: Path | None
) -> tuple[Found, Found, Counter[str]]:
    """Return what another parser says: main definitions, all of them, and uses of files."""
    if group == "python":
        found = python_definitions(root, paths)
        return found, found, python_uses(root, paths)
    if group == "javascript":
        found, uses = typescript(compiler, root, paths) if compiler else ({}, Counter[str]())
        return found, found, uses
    found, everything = ctags_definitions(root, paths)
    return found, everything, include_uses(root, paths) if group == "c" else name_uses(root, found)


def compare_with_aider(
    python: Path,
    root: Path,
    text: str,
    central: Sequence[str],
    outcome: Outcome,
) -> None:
    """Let aider make a map of the same files with the same budget."""
    files = [str(path.relative_to(root)) for path in sorted(root.rglob("*")) if path.is_file()]
    job = {"root": str(root), "files": files, "tokens": MAP_TOKENS, "text": text}
    done = subprocess.run(
        [python, "-c", AIDER], input=json.dumps(job), capture_output=True, text=True, check=True
    )
    for cache in root.glob(".aider*"):
        shutil.rmtree(cache)
    result = json.loads(done.stdout.splitlines()[-1])
    outcome.aider_seconds = result["cpu"]
    outcome.aider_tokens = estimate_tokens(result["text"])
    outcome.real_tokens = result["ours"]
    named = {line.rstrip(":") for line in str(result["text"]).splitlines()}
    if central:
        outcome.aider_share = len(set(central) & named) / len(central)


def run_command(command: str, root: Path) -> str:
    """Run a command of a project in its directory; return how it ended."""
    done = subprocess.run(
        ["sh", "-c", command], cwd=root, capture_output=True, text=True, timeout=1_800, check=False
    )
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return f"{done.returncode}: {lines[-1].strip() if lines else ''}"


def print_row(sample: Sample, outcome: Outcome) -> None:
    """Print what was measured of one project."""
    checked = outcome.commands
    cells = [
        *(f"{sample.name} ({sample.kind})", f"{outcome.files:,}"),
        f"{sum(checked.values())} of {len(checked)}" if checked else "none",
        *(_percent(outcome.exact), _percent(outcome.found)),
        *(_percent(outcome.share), _percent(outcome.aider_share)),
        *(f"{outcome.cold:.2f} s", f"{outcome.warm:.2f} s", _seconds(outcome.aider_seconds)),
        f"{outcome.tokens:,}",
        f"{outcome.real_tokens:,}" if outcome.real_tokens else "-",
    ]
    print(f"| {' | '.join(cells)} |", flush=True)
    for purpose, is_right in checked.items():
        if not is_right:
            print(f"{sample.name}: {purpose}: not the expected command", flush=True)
    for purpose, ended in outcome.runs.items():
        print(f"{sample.name}: {purpose}: {ended}", flush=True)


def main() -> None:
    """Measure all projects, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--aider", type=Path)
    parser.add_argument("--typescript", type=Path)
    parser.add_argument("--run", action="store_true")
    options = parser.parse_args()
    print(HEADER, flush=True)
    for sample in SAMPLES:
        if not options.only or sample.name in options.only:
            root = download(sample, options.directory.resolve())
            print_row(sample, measure(sample, root, options))


def _sdist_url(requirement: str) -> str:
    name, _, version = requirement.partition("==")
    page = f"https://pypi.org/simple/{name}/"
    links = re.findall(r'href="([^"#]+)', _fetch(page).decode())
    [*_, last] = [each for each in links if each.endswith(f"-{version}.tar.gz")]
    return urllib.parse.urljoin(page, last)


def _fetch(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=120) as response:
        return response.read()


def _sources(root: Path) -> dict[str, list[str]]:
    """Return the source files by group of languages, without minified ones."""
    groups: dict[str, list[str]] = {}
    for path in sorted(root.rglob("*")):
        family = language_of(path.name).family
        if family and path.is_file() and not path.is_symlink() and _is_readable(path, family):
            groups.setdefault(_group(family), []).append(str(path.relative_to(root)))
    return groups


def _group(family: str) -> str:
    groups = {"typescript": "javascript", "tsx": "javascript", "cpp": "c"}
    return groups.get(family, family)


def _is_readable(path: Path, family: str) -> bool:
    if path.stat().st_size > MAX_READ:
        return False
    text = path.read_text(errors="replace")
    return not text or bool(scan(text, family).references)


def _score(ours: Found, main: Found, every: Found, outcome: Outcome) -> None:
    total = sum(map(len, ours.values()))
    wanted = sum(map(len, main.values()))
    if total and wanted:
        outcome.exact = sum(len(ours[path] & every[path]) for path in ours) / total
        outcome.found = sum(len(ours[path] & main[path]) for path in ours) / wanted


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}" if 0.995 <= value < 1 else f"{value:.0%}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"


if __name__ == "__main__":
    main()
