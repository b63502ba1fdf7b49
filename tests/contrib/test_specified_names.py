"""Every import statement and module path of the specification works as it stands there."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from weakincentives.contrib import tools
from weakincentives.tools import vfs

STATEMENTS = Path(__file__).parent / "specified_imports.txt"
SPECIFICATION = Path(__file__).parents[3] / "shared" / "specs"
"""Its drafts, which are not part of the project."""
BLOCK = re.compile(r"^ *```(?:python|py)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
IMPORT = re.compile(r"^ *(?:import .+|from \S+ import (?:\([^)]*\)|.+))$", re.MULTILINE)
PATH = re.compile(r"src/(weakincentives(?:/\w+)+)\.py|\b(weakincentives(?:\.[a-z_]+)+)\b")
# further names that the text has for what is imported from these modules
NAMES = {
    "weakincentives.contrib.tools": """
        AstevalSection ClaudeAgentWorkspaceSection DeleteEntry EvalFileRead EvalFileWrite EvalParams
        EvalResult FILESYSTEM_TOOLS FilesystemSection HostMount PodmanConfig PodmanSandboxConfig
        PodmanSandboxSection PodmanSection PodmanShellParams PodmanWorkspace VfsFile VfsPath
        VfsSection VfsToolsSection VirtualFileSystem WorkspaceDigestSection WorkspaceSection
        WriteFile edit_file_tool glob_tool grep_tool ls_tool read_file_tool rm_tool write_file_tool
        latest_workspace_digest
    """,
    "weakincentives.contrib.tools.filesystem": """
        ContainerBackend ContainerFilesystem FileContent FileEntry Filesystem FilesystemProtocol
        GlobResult GrepMatch GrepResult HostBackend HostFilesystem InMemoryBackend
        InMemoryFilesystem WriteResult
    """,
    "weakincentives.contrib.tools.filesystem_tools": """
        FILESYSTEM_TOOLS edit_file_tool glob_tool grep_tool ls_tool read_file_tool rm_tool
        write_file_tool
    """,
    "weakincentives.contrib.tools.podman": """
        PodmanSandboxConfig PodmanSandboxSection PodmanSection PodmanShellParams PodmanWorkspace
    """,
    "weakincentives.contrib.tools.vfs": """
        DeleteEntry DeleteFile FileReadResult HostMount ListDirectory ReadFile VfsFile VfsPath
        VfsToolsSection VirtualFileSystem WriteFile
    """,
    "weakincentives.filesystem.host": "HostFilesystem",
    "weakincentives.filesystem.inmemory": "InMemoryFilesystem",
    "weakincentives.runtime.session.selectors": "select_all select_latest select_where",
    "weakincentives.tools.asteval": """
        AstevalSection EvalFileRead EvalFileWrite EvalParams EvalResult
    """,
    "weakincentives.tools.errors": "ToolValidationError",
    "weakincentives.tools.podman": "PodmanSandboxSection PodmanShellParams PodmanWorkspace",
    "weakincentives.tools.vfs": """
        DeleteFile FileReadResult HostMount ListDirectory ReadFile VfsFile VfsPath VfsToolsSection
        VirtualFileSystem WriteFile
    """,
}


def imports_of(text: str) -> Iterator[str]:
    """Yield the import statements in the code blocks of a text, and one for each module path."""
    for block in BLOCK.findall(text):  # some do not parse: they have `...` among parameters
        yield from (ast.unparse(ast.parse(each.strip())) for each in IMPORT.findall(block))
    for path, dotted in PATH.findall(text):
        yield f"import {path.replace('/', '.') or dotted}"


def statements() -> list[str]:
    return STATEMENTS.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("statement", statements())
def test_an_import_statement_of_the_specification_runs(statement: str):
    exec(statement, {})  # the statements are data here


@pytest.mark.skipif(not SPECIFICATION.is_dir(), reason="the specification is not here")
def test_the_statements_are_those_of_the_specification():
    texts = [each.read_text(encoding="utf-8") for each in SPECIFICATION.glob("*.txt")]
    assert statements() == sorted({each for text in texts for each in imports_of(text)})


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module in NAMES for name in NAMES[module].split()]
)
def test_a_name_of_the_specification_is_in_its_module(module: str, name: str):
    loaded = importlib.import_module(module)  # noqa: TID251  # the modules are data here
    assert getattr(loaded, name) is not None
    assert module.endswith(".host") or name in loaded.__all__


def test_the_tools_have_the_names_and_the_order_of_the_specification():
    names = ["ls", "read_file", "write_file", "edit_file", "glob", "grep", "rm"]
    assert [each.name for each in tools.FILESYSTEM_TOOLS] == names
    assert tuple(getattr(tools, f"{each}_tool") for each in names) == tools.FILESYSTEM_TOOLS
    assert tools.FILESYSTEM_TOOLS is vfs.FILESYSTEM_TOOLS


def test_move_file_is_offered_beside_them():
    # the function, although there is a module of that name
    assert [each.name for each in tools.filesystem_tools()] == [
        *(each.name for each in tools.FILESYSTEM_TOOLS),
        tools.move_file_tool.name,
    ]
