"""The prompt of a run: the role, the instructions of project and user, and the surroundings.

Who the model is, how to work, how to verify and how to end; then facts about system, date, Python,
git and the top of the tree. Names of branches and files are data: they are quoted, and bounded in
number. A workspace may be a repository that somebody else wrote, and git runs what a repository's
configuration names: besides what `GitRunner` switches off, no filters and no submodules.
"""

import os
import platform
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from weakincentives.cli.config import user_instructions
from weakincentives.cli.digest import describe_progress
from weakincentives.cli.run.options import JobOptions, RunSandbox, Start
from weakincentives.cli.run.view import View
from weakincentives.cli.terminal import describe_error, escape_controls
from weakincentives.cli.units import format_count, format_duration, pick, shorten_home
from weakincentives.contrib import digest
from weakincentives.contrib.digest import count, quote_path
from weakincentives.contrib.review import CommitError, GitRunner
from weakincentives.contrib.tools import (
    FilesystemSection,
    ProjectInstructionsSection,
    WorkspaceDigestSection,
)
from weakincentives.errors import WinkError
from weakincentives.filesystem import Filesystem, FilesystemSnapshot, HostFilesystem, time_limit
from weakincentives.posix import display_paths, read_regular
from weakincentives.prompt import (
    DIGEST_KEY,
    MarkdownSection,
    Prompt,
    Section,
    latest_workspace_digest,
    set_workspace_digest,
)
from weakincentives.runtime import Clock
from weakincentives.runtime.session import Session
from weakincentives.sandbox import find_environment, find_program

_WHO = """\
You are a software engineer. Your workspace is a copy of the user's project; when you are done, the
user sees the diff and decides whether to apply it. Nobody answers questions while you work: if
something is unclear, choose the simplest solution and say so at the end."""
_WORK = """\
Do what the task asks, and only that. Remove what your own change makes unnecessary, and temporary
files that you made; leave everything else as it is."""
_VERIFY = """\
After you change code, run the tests that cover it. If a test fails, find out whether it failed
before your change."""
_VERIFY_BY_READING = "You cannot run commands. Check your changes by reading them again."
_END = """\
When you are done, answer in a few sentences: what you changed, how you checked it, and what the
user should know."""


def prepare_prompt(
    section: FilesystemSection,
    files: HostFilesystem,
    start: Start,
    options: JobOptions,
    cache: digest.DigestCache,
    view: View,
) -> tuple[Prompt[None], int | None]:
    """Return the prompt of a run, and the size of the digest in it in tokens, if it has one."""
    inventory = instructions = tokens = None
    if options.digest or options.instructions:
        # nobody has changed a new copy since its first snapshot
        inventory = _list_files(files, view, cache, start.copy.base if start.is_new else None)
    if options.instructions:
        instructions = _prepare_instructions(files, view, inventory, options.max_tokens)
    if options.digest:
        tokens = _prepare_digest(start.session, files, cache, view, options, inventory)
    environment = environment_section(
        start.copy.original,
        files,
        options.model_options.clock,
        os.environ,
        sandbox=options.sandbox.name,
        has_digest=tokens is not None,
    )
    sections = (instructions, environment)
    return create_prompt(section, options.sandbox, *sections, has_digest=tokens is not None), tokens


def create_prompt(
    workspace: FilesystemSection,
    sandbox: RunSandbox,
    instructions: Section[None] | None = None,
    environment: Section[None] | None = None,
    *,
    has_digest: bool,
) -> Prompt[None]:
    """Return a prompt with the files and their tools, and what the model should know besides."""
    role = MarkdownSection[None](
        title="Your work", key="role", template="\n\n".join(_role_paragraphs(sandbox))
    )
    # what changes more often comes later: a provider's cache keeps what is before it
    summary = WorkspaceDigestSection(session=workspace.session, enabled=lambda: has_digest)
    sections = (role, workspace, instructions, summary, environment)
    return Prompt[None](
        ns="wink", key="run", name="wink run", sections=[each for each in sections if each]
    )


def _role_paragraphs(sandbox: RunSandbox) -> Iterator[str]:
    yield _WHO
    yield _WORK
    if sandbox.name is None:
        yield _VERIFY_BY_READING
    else:
        yield "\n".join(filter(None, (_VERIFY, sandbox.network)))
    yield _END


_MAX_BYTES = 256 * 1024
_PART_OF_LIMIT = 10  # one part in so many of the run's tokens
_MAX_SHOWN = 5


def _prepare_instructions(
    files: Filesystem, view: View, inventory: digest.Inventory | None, max_tokens: int | None
) -> ProjectInstructionsSection:
    """Return the section with the instructions of workspace and user, and show their names.

    They take a small part of the limit of the run: every request sends them again.
    """
    tokens = digest.DEFAULT_INSTRUCTION_TOKENS
    if max_tokens is not None:
        tokens = min(tokens, max_tokens // _PART_OF_LIMIT)
    user = _read_user_file(os.environ, tokens)
    found = digest.find_instructions(
        files, tokens=tokens - (0 if user is None else user.tokens), inventory=inventory
    )
    if user is not None or found:
        _show_instructions(found, user, view)
    return ProjectInstructionsSection(found, user=user)


def _read_user_file(environment: Mapping[str, str], tokens: int) -> digest.InstructionFile | None:
    path = user_instructions(environment)
    # under sudo the home may be unreadable: `os.path.exists` returns False, `Path.exists` raises
    if path is None or not os.path.exists(path):  # noqa: PTH110 # Path.exists raises there
        return None
    try:
        # the user's own file, so a link is followed
        text = read_regular(path, _MAX_BYTES, follow_links=True).decode("utf-8-sig", "replace")
    except OSError:
        return None
    found = digest.cut_instructions(shorten_home(path), text, tokens=tokens)
    return found if found.text else None


def _show_instructions(
    found: digest.ProjectInstructions, user: digest.InstructionFile | None, view: View
) -> None:
    files = (*(() if user is None else (user,)), *found.files)
    facts = {
        "files": [pick(each, "path", "tokens", "omitted_lines") for each in files],
        "named": [each.path for each in found.named],
        "tokens": sum(each.tokens for each in files),
    }
    names: list[str] = []
    for each in files:
        cut = f", {each.omitted_lines:,} lines left out" if each.omitted_lines else ""
        names.append(f"{each.path} ({format_count(each.tokens, 'token')}{cut})")
    names += [f"{each.path} by name" for each in found.named]
    text = f"instructions: {display_paths(names, _MAX_SHOWN)}"
    view.emit("instructions", facts, escape_controls(text))


_MAX_SECONDS = 60.0
_PART_FOR_DIGEST = 20


def _prepare_digest(
    session: Session,
    files: Filesystem,
    cache: digest.DigestCache,
    view: View,
    options: JobOptions,
    inventory: digest.Inventory | None,
) -> int | None:
    """Store the digest of a workspace in the session; return its size in tokens.

    The session of an earlier run keeps its digest, so that its prompt stays the same. If there is
    no digest, the run goes on without it, and the view says why.
    """
    earlier = latest_workspace_digest(session, DIGEST_KEY)
    if earlier is not None:
        tokens = digest.estimate_tokens(earlier.body)
        facts = {"tokens": tokens, "tree_hash": earlier.tree_hash, "error": None}
        view.emit("digest", facts, f"digest as before: {format_count(tokens, 'token')}")
        return tokens
    started = time.monotonic()
    try:
        with time_limit(_MAX_SECONDS), view.show_activity(lambda: describe_progress(cache)):
            found = digest.digest_workspace(
                files,
                tokens=_digest_budget(options.max_tokens),
                cache=cache,
                inventory=inventory,
                quote_instructions=not options.instructions,
            )
    except (WinkError, OSError, ValueError) as error:
        reason = describe_error(error)
        view.emit("digest", {"tokens": None, "error": reason}, f"no digest: {reason}")
        return None
    set_workspace_digest(session, DIGEST_KEY, found.text, tree_hash=found.tree_hash)
    seconds = time.monotonic() - started
    facts = {**pick(found, "tokens", "tree_hash", "files"), "error": None}
    facts |= {"seconds": round(seconds, 3), "warnings": list(found.warnings)}
    size = f"{format_count(found.files, 'file')}: {format_count(found.tokens, 'token')}"
    view.emit("digest", facts, f"digest of {size}, {format_duration(seconds * 1000)}")
    return found.tokens


def _list_files(
    files: HostFilesystem, view: View, cache: digest.DigestCache, state: FilesystemSnapshot | None
) -> digest.Inventory | None:
    """Return the files of a workspace, in a snapshot if there is one; None if that takes long."""
    try:
        with time_limit(_MAX_SECONDS), view.show_activity(lambda: "listing the workspace"):
            snapshot = None if state is None else files.view(state)
            return digest.take_inventory(files, snapshot=snapshot, cache=cache)
    except (WinkError, OSError, ValueError):
        return None  # a digest says why


def _digest_budget(max_tokens: int | None) -> int:
    """Return the tokens that a digest may have in a run with this limit.

    Raises:
        ValueError: They are too few for a digest.
    """
    if max_tokens is None:
        return digest.DEFAULT_DIGEST_TOKENS
    tokens = min(digest.DEFAULT_DIGEST_TOKENS, max_tokens // _PART_FOR_DIGEST)
    if tokens < digest.MIN_TOKENS:
        raise ValueError(f"a limit of {max_tokens:,} tokens leaves no room for it")
    return tokens


_SECONDS = 5.0  # for each command
_INHERITED = ("HOME", "XDG_CONFIG_HOME")  # the user's own configuration: which owners are safe
_SETTINGS = {"core.attributesFile": os.devnull}
_VARIABLES = {"GIT_OPTIONAL_LOCKS": "0"}
_FILTER_KEYS = ("clean", "smudge", "process")


@dataclass(frozen=True, slots=True)
class RepositoryState:
    """Where a repository is, and what differs from its last commit."""

    branch: str | None
    """None if no branch is checked out."""
    commit: str | None
    """The beginning of its id; None before the first commit."""
    changes: tuple[str, ...] | None
    """Two letters and a path for each, as `git status --short` prints them; None if unknown."""


def read_repository(directory: Path, environment: Mapping[str, str]) -> RepositoryState | None:
    """Return the state of the repository that a directory belongs to.

    None if it belongs to none, or git is missing, refuses or takes too long. Programs in the
    directory are not used.
    """
    program = find_program("git", [directory])
    if program is None:
        return None
    own = {name: environment[name] for name in _INHERITED if name in environment}
    git = GitRunner(program, directory, own, _VARIABLES, _SETTINGS, _SECONDS)
    place = _run(git, "rev-parse", "--show-toplevel", "--show-prefix")
    if place is None:
        return None
    top, prefix = (*place.split("\n"), "", "")[:2]
    # a configuration may name another directory as the one that belongs to the repository
    if os.path.realpath(os.path.join(top, prefix)) != os.path.realpath(directory):  # noqa: PTH118 # the prefix may be empty
        return None
    filters = _filter_settings(git)
    if filters is None:
        return _read_head(git)
    # each entry has two letters, a space and a path below the top of the repository
    listed = _run(replace(git, settings={**_SETTINGS, **filters}), *_STATUS)
    if listed is None:
        return _read_head(git)
    entries = (f"{each[:3]}{each[3:].removeprefix(prefix)}" for each in listed.split("\0")[:-1])
    return replace(_read_head(git), changes=tuple(entries))


_STATUS = (
    *("status", "--porcelain", "-z", "--no-renames", "--untracked-files=normal"),
    *("--ignore-submodules=all", "--", "."),
)


def _run(git: GitRunner, *arguments: str) -> str | None:
    """Return the output of a command; None if it fails or takes too long."""
    try:
        return os.fsdecode(git.run(*arguments))
    except (CommitError, OSError, ValueError):
        return None


def _read_head(git: GitRunner) -> RepositoryState:
    """Return the state without the changes, which take long in a large repository."""
    branch = (_run(git, "symbolic-ref", "--quiet", "--short", "HEAD") or "").strip()
    commit = (_run(git, "rev-parse", "--short=7", "--verify", "HEAD") or "").strip()
    return RepositoryState(branch or None, commit or None, None)


def _filter_settings(git: GitRunner) -> Mapping[str, str] | None:
    """Return settings that switch off every filter; None if they cannot be listed.

    A filter is a program that git would run on files that have changed.
    """
    # all settings: a pattern that finds nothing would be a failure
    listed = _run(git, "config", "--list", "--name-only", "-z")
    if listed is None:
        return None
    names = {
        each.split(".", 1)[1].rpartition(".")[0]
        for each in listed.split("\0")
        if each.startswith("filter.") and each.count(".") > 1
    }
    settings = {f"filter.{name}.{key}": "" for name in names for key in _FILTER_KEYS}
    return settings | {f"filter.{name}.required": "false" for name in names}


_MAX_CHANGES = 20
_MAX_NAMES = 60
_MAX_CONFIG = 64 * 1024
_VERSION = re.compile(r"^version(?:_info)?\s*=\s*(\d[\w.+-]{0,30})\s*$", re.MULTILINE)


def environment_section(
    original: Path,
    filesystem: Filesystem,
    clock: Clock,
    environment: Mapping[str, str],
    *,
    sandbox: str | None,
    has_digest: bool,
) -> MarkdownSection[None]:
    """Return a section about the surroundings of a run, among them the repository of the original.

    Without a digest, which shows the tree, it has the top of it.
    """
    lines = [f"System: {_describe_system(sandbox)}", f"Date: {clock.now():%Y-%m-%d}"]
    if sandbox != "podman":  # an image has its own
        lines.append(f"Python: {_describe_python(original)}")
    state = read_repository(original, environment)
    if state is not None:
        lines += _describe_repository(state)
    if not has_digest:
        lines += _describe_tree(filesystem)
    text = "\n".join(lines)
    return MarkdownSection[None](
        title="Environment", key="environment", template=text.replace("$", "$$")
    )


def _describe_system(sandbox: str | None) -> str:
    system, machine = platform.system(), platform.machine()
    if sandbox == "podman":
        return f"{system}, {machine}; commands run in a container"
    try:
        name = platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        name = ""
    return ", ".join(filter(None, (f"{system} {platform.release()}", name, machine)))


def _describe_python(workspace: Path) -> str:
    """Return the version of the workspace's virtual environment, or else of the user's Python."""
    name = find_environment(str(workspace))
    if name is not None:
        try:
            data = read_regular(workspace / name / "pyvenv.cfg", _MAX_CONFIG)
        except OSError:
            data = b""
        version = _VERSION.search(data.decode("utf-8", "replace"))
        if version is not None:
            return f"{version[1]} in {name}/"
    return platform.python_version()


def _describe_repository(state: RepositoryState) -> Iterator[str]:
    branch = "no branch" if state.branch is None else f"branch {quote_path(state.branch)}"
    commit = "no commit yet" if state.commit is None else f"commit {state.commit}"
    if state.changes is None:
        yield f"Git: {branch}, {commit}"
        return
    number = len(state.changes)
    changed = f"{count(number, 'path')} changed before you started:" if number else "no changes"
    yield f"Git: {branch}, {commit}, {changed}"
    for each in state.changes[:_MAX_CHANGES]:
        yield f"  {each[:2]} {quote_path(each[3:])}"
    if number > _MAX_CHANGES:
        yield f"  and {number - _MAX_CHANGES:,} more"


def _describe_tree(filesystem: Filesystem) -> Iterator[str]:
    try:
        entries = filesystem.list(".")
    except OSError:
        return
    names = [f"{quote_path(each.name)}{'/' * each.is_directory}" for each in entries]
    more = f" and {len(names) - _MAX_NAMES:,} more" if len(names) > _MAX_NAMES else ""
    if names:
        yield f"Top of the tree: {' '.join(names[:_MAX_NAMES])}{more}"
