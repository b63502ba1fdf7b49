"""Pins: a tag is resolved to a digest when an image is pulled or built, and never again.

A tag can be moved, in the registry and in the engine. Containers start from the content that the
tag stood for when `pull_image` or `build_image` got it, until either gets it again.
"""

import json
from pathlib import Path
from typing import Any, cast

from weakincentives.posix import AtomicFile
from weakincentives.sandbox.container.engine import PodmanSandboxConfig

_FILE = "images.json"
_MAX_BYTES = 1024 * 1024


def pin_image(config: PodmanSandboxConfig, image: str, identity: str) -> None:
    """Let `image` stand for the image with this ID from now on.

    Args:
        config: The engine, and the cache that keeps the pin.
        image: The name of the image.
        identity: Its ID, the digest of its configuration, which names the digests of its layers.
    """
    folder = config.cache_directory
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    pins = {**_read(folder / _FILE), _key(config, image): identity}
    data = json.dumps(pins, indent=2, sort_keys=True).encode()
    with AtomicFile(folder, data) as written:
        written.name(folder / _FILE)


def find_pin(config: PodmanSandboxConfig, image: str) -> str | None:
    """Return the ID of the image that a name stands for; None if it is not pinned."""
    return _read(config.cache_directory / _FILE).get(_key(config, image))


def _key(config: PodmanSandboxConfig, image: str) -> str:
    """Return the key of a pin: engines have images of their own."""
    return f"{config.connection or config.base_url or 'local'} {image}"


def _read(path: Path) -> dict[str, str]:
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_MAX_BYTES))
    except (OSError, ValueError):
        return {}  # nothing is pinned yet, or somebody else wrote the file
    if not isinstance(found, dict):
        return {}
    pins = cast("dict[str, Any]", found)
    return {name: identity for name, identity in pins.items() if isinstance(identity, str)}
