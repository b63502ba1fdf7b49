"""Containers: the engine, the runner inside, and the connection between host and runner."""

from weakincentives.sandbox.container.client import ContainerCommand as ContainerCommand
from weakincentives.sandbox.container.client import RunnerClient as RunnerClient
from weakincentives.sandbox.container.container import Container as Container
from weakincentives.sandbox.container.engine import BUILT_IMAGE as BUILT_IMAGE
from weakincentives.sandbox.container.engine import DEFAULT_IMAGE as DEFAULT_IMAGE
from weakincentives.sandbox.container.engine import HOME as HOME
from weakincentives.sandbox.container.engine import PodmanEngine as PodmanEngine
from weakincentives.sandbox.container.engine import PodmanSandboxConfig as PodmanSandboxConfig
from weakincentives.sandbox.container.engine import configure as configure
from weakincentives.sandbox.container.engine import engine_error as engine_error
from weakincentives.sandbox.container.filesystem import ContainerFilesystem as ContainerFilesystem
from weakincentives.sandbox.container.image import DEFAULT_PACKAGES as DEFAULT_PACKAGES
from weakincentives.sandbox.container.image import PackageMirror as PackageMirror
from weakincentives.sandbox.container.image import build_image as build_image
from weakincentives.sandbox.container.image import find_mirror as find_mirror
from weakincentives.sandbox.container.image import pull_image as pull_image
from weakincentives.sandbox.container.overlays import Overlay as Overlay
from weakincentives.sandbox.container.prune import PruneResult as PruneResult
from weakincentives.sandbox.container.prune import prune_sandboxes as prune_sandboxes
from weakincentives.sandbox.protocol import WORKSPACE as WORKSPACE
