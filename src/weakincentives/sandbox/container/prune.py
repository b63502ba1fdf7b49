"""Removing what killed processes have left: containers and overlays."""

import json
import platform
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from weakincentives.posix import is_owner_gone
from weakincentives.sandbox.container.engine import (
    MACHINE_LABEL,
    OWNER_LABEL,
    PodmanEngine,
    PodmanSandboxConfig,
    configure,
)
from weakincentives.sandbox.container.overlays import prune_overlays
from weakincentives.sandbox.protocol import SandboxUnavailableError

_pruned: set[PodmanSandboxConfig] = set()


@dataclass(frozen=True, slots=True)
class PruneResult:
    """What was removed.

    Args:
        containers: The names of containers.
        overlays: The paths of directories that had the workspaces of sections.
        problem: Why containers could not be looked for; empty if they were.
    """

    containers: tuple[str, ...] = ()
    overlays: tuple[str, ...] = ()
    problem: str = ""


def prune_sandboxes(config: PodmanSandboxConfig | None = None) -> PruneResult:
    """Remove the containers and overlays of processes that have ended.

    A process whose state is unknown, for example on another machine, counts as running.
    """
    used = configure(config)
    overlays = tuple(prune_overlays(used.cache_directory))
    try:
        engine = PodmanEngine(used)
        containers = find_leftovers(engine)
        engine.remove(containers)
    except SandboxUnavailableError as error:
        return PruneResult(overlays=overlays, problem=str(error))
    return PruneResult(tuple(containers), overlays)


def find_leftovers(engine: PodmanEngine) -> list[str]:
    """Return the names of containers whose process on this machine is gone."""
    text = engine.run("ps", "--all", "--filter", f"label={OWNER_LABEL}", "--format", "json")
    return [each["Names"][0] for each in json.loads(text or "[]") if _is_leftover(each["Labels"])]


def _is_leftover(labels: Mapping[str, str]) -> bool:
    if labels.get(MACHINE_LABEL) != platform.node():
        return False  # nobody here knows whether its owner runs
    return is_owner_gone(labels.get(OWNER_LABEL, "")) is True


def prune_once(config: PodmanSandboxConfig) -> None:
    """Call `prune_sandboxes` in the background, once in the life of this process."""
    if config not in _pruned:
        _pruned.add(config)
        threading.Thread(target=_prune_quietly, args=(config,), daemon=True).start()


def _prune_quietly(config: PodmanSandboxConfig) -> None:
    with suppress(OSError, ValueError):
        prune_sandboxes(config)
