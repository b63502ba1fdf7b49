"""The tasks behind the Makefile: `python3 -m scripts.tasks TASK` from the project's directory."""

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from scripts.environments import Environment, create, environment, offer_uv
from scripts.machine import (
    Interpreter,
    install_missing,
    offer_programs,
    other_interpreters,
    require_program,
    running_interpreter,
)
from scripts.node_packages import offer_node_packages
from scripts.site import build
from scripts.steps import (
    ROOT,
    StepFailedError,
    hand_over_to,
    output_of,
    run_side_by_side,
    step,
)

CONSTRAINTS = ROOT / "constraints.txt"
"""The versions that development uses, on every machine."""

_SOURCES = ("src", "tests", "scripts", "benchmarks", "examples")

# tests of an extra with a program of 350 MB in it: one environment has it, and they run there
_WITH_CLAUDE_CODE = (
    "--deselect=tests/test_public_names.py::test_all_lists_exactly_the_public_names_of_a_module"
    "[weakincentives.adapters.claude_code]",
)

BY_VERSION = (
    "tests/adapters/loop",
    "tests/posix",
    "tests/prompt",
    "tests/runtime/session/test_dump.py",
    "tests/runtime/session/test_session.py",
    "tests/runtime/test_interrupts.py",
    "tests/runtime/test_parallel_sessions.py",
    "tests/runtime/test_transactions.py",
    "tests/sandbox/test_local.py",
    "tests/test_public_names.py",
    "tests/test_serde.py",
)
"""What depends on the version of Python: types at run time, forks and threads, its library."""

BY_WHEEL = (
    # commands and the page, with the advice on extras; tests/test_distribution.py runs the demo
    "tests/cli/test_doctor.py",
    "tests/cli/test_main.py",
    "tests/debug/test_export.py",
    "tests/debug/test_routes.py",
    # modules that are started as programs by their path, and read other modules as text
    "tests/contrib/digest/test_outline.py",
    "tests/contrib/evaluation/test_contract.py",
    "tests/contrib/evaluation/test_workers.py",
    "tests/sandbox/test_supervisor.py",
    # disks, archives and git as the standard library reaches them
    "tests/filesystem/archive/test_archive.py",
    "tests/filesystem/host/test_filesystem.py",
    "tests/filesystem/host/test_store.py",
    # event loops, threads and signals together
    "tests/mcp/test_calls.py",
    "tests/mcp/test_http.py",
    "tests/mcp/test_stdio.py",
    "tests/mcp/test_workspace.py",
    # what users copy from the documents
    "tests/test_docs.py",
)
"""What may fail only where the wheel is installed. Everything else imports the same modules as
the quick tests do, and those run on every Python in CI."""

BY_USER = (
    "tests/cli/test_attach.py",
    "tests/cli/test_commit.py",
    "tests/cli/test_demo.py",
    "tests/cli/test_doctor.py",
    "tests/cli/test_patches.py",
    "tests/cli/test_review.py",
    "tests/cli/test_run.py",
    "tests/cli/test_runs.py",
    "tests/cli/test_sandbox.py",
    "tests/cli/test_state.py",
    "tests/cli/test_undo.py",
    "tests/contrib/review",
    "tests/filesystem/archive",
    "tests/filesystem/diff",
    "tests/filesystem/host",
    "tests/filesystem/mounts",
    "tests/filesystem/test_savepoints.py",
    "tests/filesystem/test_snapshot_manager.py",
    "tests/filesystem/test_undo.py",
    "tests/sandbox/test_attribute_calls.py",
    "tests/sandbox/test_cgroup.py",
    "tests/sandbox/test_changes.py",
    "tests/sandbox/test_copied_environments.py",
    "tests/sandbox/test_environment.py",
    "tests/sandbox/test_etc_directory.py",
    "tests/sandbox/test_keys.py",
    "tests/sandbox/test_local.py",
    "tests/sandbox/test_overlays.py",
    "tests/sandbox/test_probe.py",
    "tests/sandbox/test_supervisor.py",
    "tests/sandbox/test_system_paths.py",
)
"""What may do something else for an ordinary user: it meets owners, closed directories,
namespaces, or the user's own state. Containers are not here: they need a user with a name."""

# tests wait for containers, browsers and timeouts half of the time: one worker more than processors
_WORKERS = str((os.cpu_count() or 1) + 1)

# what the tests of sandboxes and of the debug page run for real: without it they are skipped, or
# fail where CI is set
_PROGRAMS = {
    "chromium": "chromium",
    "bwrap": "bubblewrap",
    "podman": "podman",
    # podman needs either; crun refuses to work with control groups of both versions at once
    "crun": "crun",
    "runc": "runc",
    # containers of an ordinary user
    "newuidmap": "uidmap",
    "slirp4netns": "slirp4netns",
    "fuse-overlayfs": "fuse-overlayfs",
    # images without a registry; gpgv checks what it loads
    "debootstrap": "debootstrap",
    "gpgv": "gpgv",
}

# what must hold for the wheel where nothing but its dependencies is installed
_SMOKE = """
from importlib.resources import files
import weakincentives.filesystem as workspace
fs = workspace.InMemoryFilesystem()
fs.write("a.txt", "hello")
assert fs.read("a.txt").content == "hello"
assert files("weakincentives").joinpath("py.typed").is_file()
assert files("weakincentives").joinpath("debug", "page", "app.js").is_file()
"""


def demo(_: Sequence[str]) -> None:
    """Watch an agent fix a bug in a small project."""
    if not (ROOT / ".venv-demo").is_dir():
        print("This needs the package index once, to fill .venv-demo with a few packages.")
    with step("set-up"):
        install_missing()
        # apart from .venv: whoever only watches needs none of the development tools
        alone = environment(".venv-demo", running_interpreter(), ["--editable", "."])
    hand_over_to([alone.program("wink"), "demo"])


def check(_: Sequence[str]) -> None:
    """Format, lint, layers, types, quick tests and documents, on one Python."""
    tools = _set_up()
    _examine(tools)
    _pytest(tools, f"quick tests, {running_interpreter().name}", "-m", "not slow")


def test(_: Sequence[str]) -> None:
    """Run everything: check with all tests, the wheel, every other Python, LiteLLM."""
    install_missing()
    with step("programs"):
        offer_programs(_PROGRAMS)
        offer_node_packages()
        offer_uv(running_interpreter())
    tools = _set_up()
    others = other_interpreters(running_interpreter().version)
    # one thread makes what later steps need, mostly waiting for downloads, while tests run
    with TemporaryDirectory(prefix="wink-") as directory, ThreadPoolExecutor(1) as background:
        wheel = background.submit(_checked_wheel, Path(directory))
        made = {each: background.submit(_environment_of, each) for each in others[:-1]}
        made |= {each: background.submit(_environment_for_wheel, each) for each in others[-1:]}
        litellm = background.submit(_environment_for_litellm)
        try:
            _examine(tools)
            _pytest(tools, f"tests, {running_interpreter().name}")
            for interpreter in others[:-1]:
                _test_version(made[interpreter], interpreter, BY_VERSION)
            with step("wheel"):
                built = wheel.result()
            for interpreter in others[-1:]:
                with step(f"wheel, {interpreter.name}"):
                    made[interpreter].result().install("--no-deps", "--force-reinstall", built)
                _test_version(made[interpreter], interpreter, (*BY_VERSION, *BY_WHEEL))
            _test_litellm(litellm)
            if os.geteuid() == 0:
                _test_as_ordinary_user(tools)
        finally:
            background.shutdown(cancel_futures=True)


def test_long(_: Sequence[str]) -> None:  # noqa: PT019  a task of make
    """Run the long walks in full size, and every benchmark once with its peers; for the night."""
    install_missing()
    with step("set-up"):
        offer_programs(_PROGRAMS)
        offer_node_packages()
        tools = _development()
        python = _benchmarking().program("python")
    _pytest(tools, "long tests", "--long", "--timeout", "7200")
    with step("benchmarks, smallest"):
        output_of([python, "-m", "benchmarks", "--smallest"])


def bench(arguments: Sequence[str]) -> None:
    """Run the benchmarks; the arguments go to `python -m benchmarks`."""
    with step("set-up"):
        install_missing()
        python = _benchmarking().program("python")
    hand_over_to([python, "-m", "benchmarks", *arguments])


def docs(_: Sequence[str]) -> None:
    """Build the documentation site in site/."""
    with step("set-up"):
        install_missing()
        # apart from .venv: nothing else needs the generator
        tools = environment(".venv-docs", running_interpreter(), ["--editable", ".[docs]"])
    with step("site"):
        build(tools, ROOT / "build" / "site", ROOT / "site")
    print(f"open {ROOT / 'site' / 'index.html'}")


def coverage(_: Sequence[str]) -> None:
    """Measure the branches that the quick tests reach; less than the floor fails."""
    with step("set-up"):
        tool = _development().program("coverage")
    with step("tests"):
        output_of([tool, "run", "-m", "pytest", "-m", "not slow", "-n", _WORKERS])
        output_of([tool, "combine"])
    hand_over_to([tool, "report"])


def lock(_: Sequence[str]) -> None:
    """Renew constraints.txt: the newest versions of all that development needs."""
    with step("set-up"):
        tools = environment(".venv-lock", running_interpreter(), ["uv"])
    extras = ("--extra", "dev", "--extra", "docs")
    index = ("--default-index", "https://pypi.org/simple", "--no-emit-index-url")
    options = ("--universal", "--python-version", "3.11", "--upgrade", "--no-config", "--quiet")
    with step("versions"):
        output_of(
            [
                *(tools.program("uv"), "pip", "compile", "pyproject.toml", *extras, *index),
                *(*options, "--custom-compile-command", "make lock", "-o", str(CONSTRAINTS)),
            ]
        )


def shape(arguments: Sequence[str]) -> None:
    """Print the shape of the source tree in figures; one that got worse fails."""
    hand_over_to([_development().program("python"), "-m", "scripts.shape", *arguments])


def words(_: Sequence[str]) -> None:
    """Print the words of the documents beside their budgets; a folder that is over fails."""
    hand_over_to([_development().program("python"), "-m", "scripts.words"])


def clean(_: Sequence[str]) -> None:
    """Remove everything that make made."""
    made = (".venv*", "build", "dist", "site", ".*_cache", ".coverage*", ".hypothesis")
    for path in (path for pattern in made for path in ROOT.glob(pattern)):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


TASKS: Mapping[str, Callable[[Sequence[str]], None]] = {
    task.__name__.replace("_", "-"): task
    for task in (demo, check, test, test_long, bench, docs, coverage, lock, shape, words, clean)
}


def main(arguments: Sequence[str]) -> int:
    """Run the task that `arguments` name; 0 when all is well."""
    name = arguments[0] if arguments else "help"
    if name not in TASKS:
        for known, task in TASKS.items():
            print(f"make {known:<10} {task.__doc__}")
        return 0 if name == "help" else 2
    try:
        TASKS[name](arguments[1:])
    except StepFailedError as failure:
        print(failure, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _set_up() -> Environment:
    with step("set-up"):
        require_program("git", "git")
        return _development()


def _examine(tools: Environment) -> None:
    """Look at the code without running it."""
    sources = [each for each in _SOURCES if (ROOT / each).is_dir()]
    ruff, layers, pyright = map(tools.program, ("ruff", "lint-imports", "pyright"))
    run_side_by_side(
        {
            "types": lambda: output_of([pyright]),
            "public types": lambda: _verify_types(tools),
            "format": lambda: output_of([ruff, "format", "--check", *sources]),
            "lint": lambda: output_of([ruff, "check", *sources]),
            "layers": lambda: output_of([layers, "--no-cache"]),
            "shape": lambda: output_of([tools.program("python"), "-m", "scripts.shape"]),
            "words": lambda: output_of([tools.program("python"), "-m", "scripts.words"]),
        }
    )


def _verify_types(tools: Environment) -> None:
    """Check that the type of every public symbol is stated, and not left to inference."""
    # pyright looks for the package as a user's program would: on the path, not in the project
    found = [ROOT / "src", *tools.path.glob("lib/python*/site-packages")]
    path = {"PYTHONPATH": os.pathsep.join(map(str, found))}
    package = ("--verifytypes", "weakincentives", "--ignoreexternal")
    output_of([tools.program("pyright"), *package], environment=path)


def _pytest(tools: Environment, name: str, *arguments: str) -> None:
    """Run the tests and print pytest's own closing line."""
    # one at a time to whoever is free: a worker that is given many may end long after the others
    workers = ("-n", _WORKERS, "--maxschedchunk", "1")
    command = [tools.program("python"), "-m", "pytest", *workers, *arguments]
    with step(name):
        printed = output_of(command)
    print(printed.rstrip().rpartition("\n")[2], flush=True)


def _checked_wheel(directory: Path) -> Path:
    """Build the wheel, and see that it works where nothing else is installed."""
    python = _development().program("python")
    output_of([python, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", directory, ROOT])
    [wheel] = directory.glob("*.whl")
    alone = create(directory / "alone", running_interpreter())
    alone.install(wheel)
    output_of([alone.program("wink"), "--version"])
    output_of([alone.program("python"), "-I", "-c", _SMOKE])
    return wheel


def _environment_of(interpreter: Interpreter) -> Environment:
    """Return an environment with all that the tests need, on the sources."""
    needed = ["--editable", ".[suite]", "--constraint", str(CONSTRAINTS)]
    return environment(f".venv-{interpreter.name}", interpreter, needed)


def _environment_for_wheel(interpreter: Interpreter) -> Environment:
    """Return an environment with all that the tests need, but for the wheel itself."""
    needed = [".[suite]", "--constraint", str(CONSTRAINTS)]
    return environment(f".venv-{interpreter.name}-wheel", interpreter, needed)


def _test_version(
    made: Future[Environment], interpreter: Interpreter, chosen: Sequence[str]
) -> None:
    """Run `chosen` quick tests on `interpreter`, against what its environment has installed."""
    with step(f"set-up, {interpreter.name}"):
        tools = made.result()
    name = f"quick tests, {interpreter.name}"
    _pytest(tools, name, "-m", "not slow", *_WITH_CLAUDE_CODE, *chosen)


def _environment_for_litellm() -> Environment:
    needed = ["--editable", ".[litellm,testing]", "pytest-timeout>=2.3"]
    return environment(".venv-litellm", running_interpreter(), needed)


def _test_litellm(made: Future[Environment]) -> None:
    """Run the tests of LiteLLM where it can be: it wants an older openai than everything else."""
    with step("set-up, LiteLLM"):
        tools = made.result()
    with step("tests, LiteLLM"):
        printed = output_of([tools.program("python"), "-m", "pytest", "tests/litellm"])
    print(printed.rstrip().rpartition("\n")[2], flush=True)


def _test_as_ordinary_user(tools: Environment) -> None:
    """Run once more what the rights of the user can change; root has run the rest as well."""
    python = tools.program("python")
    tests = ("-m", "not slow and not root", "-p", "no:cacheprovider", "-n", _WORKERS, *BY_USER)
    with step("tests, ordinary user"):
        printed = output_of([python, "-m", "scripts.ordinary_user", python, "-m", "pytest", *tests])
    print(printed.rstrip().rpartition("\n")[2], flush=True)


def _development() -> Environment:
    needed = ["--editable", ".[dev]", "--constraint", str(CONSTRAINTS)]
    return environment(".venv", running_interpreter(), needed)


def _benchmarking() -> Environment:
    offer_programs({"rg": "ripgrep"})
    offer_node_packages()
    # apart from .venv, because the peers bring pytest plugins and 50 packages
    return environment(".venv-bench", running_interpreter(), ["--editable", ".[bench]"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
