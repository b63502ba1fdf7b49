"""Container images: pulled from a registry, or made from Debian packages without one.

The packages come from the mirror that this machine's apt is configured with, so it works where
only a package mirror can be reached.

A tag can be moved, in the registry and in the engine. So it is resolved to a digest when an image
is pulled or built, its pin: containers start from that until the image is got again.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

from weakincentives.posix import AtomicFile
from weakincentives.sandbox.container.engine import (
    BUILT_IMAGE,
    DEFAULT_IMAGE,
    PodmanEngine,
    PodmanSandboxConfig,
    configure,
    engine_error,
)
from weakincentives.sandbox.protocol import SandboxUnavailableError

DEFAULT_PACKAGES = (
    *("python3", "python-is-python3", "python3-pip", "python3-venv"),
    *("git", "ca-certificates"),
)
"""What an image needs to install a Python project and to run its tests."""

ProgressListener: TypeAlias = Callable[[str], object]
"""Called with a line of text for every step of a build."""

_SOURCES = Path("/etc/apt")
_PINS = "images.json"
_MAX_PIN_BYTES = 1024 * 1024
_MAX_LINES = 20  # of the output of a failed step
_SKIPPED = ("./proc/*", "./sys/*", "./dev/*", "./var/cache/apt/*", "./var/lib/apt/lists/*")
# the name of a release, as opposed to one of its suites such as `-updates`
_RELEASE = re.compile(r"[a-z]+")


class PackageMirror(NamedTuple):
    """A mirror of Debian packages and a release that it has."""

    url: str
    release: str


def build_image(
    tag: str = BUILT_IMAGE,
    *,
    config: PodmanSandboxConfig | None = None,
    mirror: PackageMirror | None = None,
    packages: Sequence[str] = DEFAULT_PACKAGES,
    on_progress: ProgressListener | None = None,
) -> str:
    """Make an image with Python from Debian packages; return its ID.

    Containers start from this ID, whatever the tag stands for later, until it is built again.

    Args:
        tag: The name of the image.
        config: The engine; by default from the environment.
        mirror: Where to get packages from; by default as apt is configured on this machine.
        packages: The packages besides a minimal Debian.
        on_progress: Called with a line for every step.

    Raises:
        SandboxUnavailableError: A tool or a permission is missing, or a step failed.
    """
    used = configure(config)
    source = mirror or find_mirror()
    program = _find_debootstrap()
    with tempfile.TemporaryDirectory(prefix="wink-image-") as directory:
        root = Path(directory, "root")
        command = [program, "--variant=minbase", f"--include={','.join(packages)}"]
        _run([*command, source.release, str(root), source.url], on_progress)
        engine = PodmanEngine(used)
        identity = import_directory(root, tag, engine=engine, on_progress=on_progress)
    pin_image(used, tag, identity)
    return identity


def pull_image(
    image: str = DEFAULT_IMAGE,
    *,
    config: PodmanSandboxConfig | None = None,
    on_progress: ProgressListener | None = None,
) -> str:
    """Get an image from a registry, or wherever podman's transports reach; return its ID.

    Containers start from this ID, whatever the name stands for later, until it is pulled again.

    Args:
        image: Its name, best with a digest: `docker.io/library/python@sha256:...`.
        config: The engine; by default from the environment.
        on_progress: Called with a line for every step.

    Raises:
        SandboxUnavailableError: podman failed.
    """
    used = configure(config)
    identity = _run(PodmanEngine(used).command("pull", image), on_progress)[-1]
    pin_image(used, image, identity)
    return identity


def import_directory(
    root: Path, tag: str, *, engine: PodmanEngine, on_progress: ProgressListener | None = None
) -> str:
    """Make an image of the files in a directory; return its ID.

    Raises:
        SandboxUnavailableError: podman failed.
    """
    if on_progress is not None:
        on_progress(f"I: Importing {tag}")
    skipped = [f"--exclude={pattern}" for pattern in _SKIPPED]
    archive = ["tar", "-C", str(root), "--numeric-owner", *skipped, "-cf", "-", "."]
    with subprocess.Popen(archive, stdout=subprocess.PIPE) as tar:
        done = subprocess.run(
            engine.command("import", "--quiet", "-", tag),
            stdin=tar.stdout,
            capture_output=True,
            check=False,
        )
    if done.returncode or tar.returncode:
        raise engine_error(done.stderr.decode(errors="replace"))
    return done.stdout.decode().strip()


def find_mirror(sources: Path = _SOURCES) -> PackageMirror:
    """Return the first mirror of a Debian release in apt's configuration.

    Raises:
        SandboxUnavailableError: apt has no Debian mirror.
    """
    for path in _source_files(sources):
        text = path.read_text(errors="replace")
        found = _parse_deb822(text) if path.suffix == ".sources" else _parse_list(text)
        for each in found:
            if _RELEASE.fullmatch(each.release):
                return each
    raise SandboxUnavailableError(
        f"apt has no Debian mirror in {str(sources)!r}; pass mirror=PackageMirror(url, release)"
    )


def _source_files(sources: Path) -> list[Path]:
    folder = sources / "sources.list.d"
    found = [sources / "sources.list", *sorted(folder.glob("*.sources"))]
    found += sorted(folder.glob("*.list"))
    return [path for path in found if path.is_file()]


def _parse_deb822(text: str) -> Iterator[PackageMirror]:
    for block in re.split(r"\n\s*\n", text):
        lines = (line for line in block.splitlines() if not line.startswith("#"))
        fields = dict(line.split(":", 1) for line in lines if ":" in line)
        if "deb" in fields.get("Types", "").split() and fields.get("Enabled", "").strip() != "no":
            for suite in fields.get("Suites", "").split():
                yield from (PackageMirror(url, suite) for url in fields.get("URIs", "").split())


def _parse_list(text: str) -> Iterator[PackageMirror]:
    for line in text.splitlines():
        words = re.sub(r"\[[^]]*\]", "", line.partition("#")[0]).split()
        if len(words) > 3 and words[0] == "deb":
            yield PackageMirror(words[1], words[2])


def _find_debootstrap() -> str:
    found = shutil.which("debootstrap", path=os.pathsep.join([*os.get_exec_path(), "/usr/sbin"]))
    if found is None:
        raise SandboxUnavailableError(
            "debootstrap is not installed: install it with `apt install debootstrap`"
        )
    if os.geteuid():
        raise SandboxUnavailableError(
            f"debootstrap needs root on {platform.system()}: build the image with sudo"
        )
    return found


def _run(command: Sequence[str], on_progress: ProgressListener | None) -> list[str]:
    """Run a step and pass each line of its output on; return the last lines."""
    lines: list[str] = []
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        for line in process.stdout or ():
            lines = [*lines, line.rstrip()][-_MAX_LINES:]
            if on_progress is not None:
                on_progress(line.rstrip())
    if process.returncode:
        text = "\n".join(lines[-1:] if on_progress else lines)  # a listener has seen the rest
        raise SandboxUnavailableError(
            f"{Path(command[0]).name} failed with code {process.returncode}:\n{text}"
        )
    return lines or [""]


def pin_image(config: PodmanSandboxConfig, image: str, identity: str) -> None:
    """Let `image` stand for the image with this ID from now on.

    Args:
        config: The engine, and the cache that keeps the pin.
        image: The name of the image.
        identity: Its ID, the digest of its configuration, which names the digests of its layers.
    """
    folder = config.cache_directory
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    pins = {**_read_pins(folder / _PINS), _pin_key(config, image): identity}
    data = json.dumps(pins, indent=2, sort_keys=True).encode()
    with AtomicFile(folder, data) as written:
        written.name(folder / _PINS)


def find_pin(config: PodmanSandboxConfig, image: str) -> str | None:
    """Return the ID of the image that a name stands for; None if it is not pinned."""
    return _read_pins(config.cache_directory / _PINS).get(_pin_key(config, image))


def _pin_key(config: PodmanSandboxConfig, image: str) -> str:
    """Return the key of a pin: engines have images of their own."""
    return f"{config.connection or config.base_url or 'local'} {image}"


def _read_pins(path: Path) -> dict[str, str]:
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_MAX_PIN_BYTES))
    except (OSError, ValueError):
        return {}  # nothing is pinned yet, or somebody else wrote the file
    if not isinstance(found, dict):
        return {}
    pins = cast("dict[str, Any]", found)
    return {name: identity for name, identity in pins.items() if isinstance(identity, str)}
