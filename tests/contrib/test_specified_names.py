"""Import statements, module paths and signatures of the specification work as they stand there."""

import ast
import importlib
import re
from collections.abc import Iterator
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Any

import pytest

from weakincentives.contrib import tools
from weakincentives.tools import vfs

STATEMENTS = Path(__file__).parent / "specified_imports.txt"
SIGNATURES = Path(__file__).parent / "specified_signatures.txt"
"""Those that stay, with their module: where drafts differ, those of the draft that decides."""
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


def find_classes(text: str) -> Iterator[ast.ClassDef | ast.FunctionDef]:
    """Yield the classes and functions in the code blocks that can be parsed."""
    for block in BLOCK.findall(text):
        try:
            body = ast.parse(block).body
        except SyntaxError:  # `...` among parameters
            continue
        yield from (each for each in body if isinstance(each, ast.ClassDef | ast.FunctionDef))


def signatures_of(text: str) -> Iterator[str]:
    """Yield the name of each property, and each function and dataclass with its parameters."""
    for node in find_classes(text):
        if isinstance(node, ast.FunctionDef):
            yield f"{node.name}({format_parameters(node.args)})"
        elif node.decorator_list:
            found = (each for each in node.body if isinstance(each, ast.AnnAssign))
            named = (ast.unparse(each.target) + format_default(each.value) for each in found)
            yield f"{node.name}({', '.join(named)})"
        for each in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(each, ast.FunctionDef):
                parameters = "" if each.decorator_list else f"({format_parameters(each.args)})"
                yield f"{node.name}.{each.name}{parameters}"


def format_parameters(given: ast.arguments) -> str:
    """Return parameters without their types."""
    given.args = [each for each in given.args if each.arg != "self"]
    named = (each for each in ast.walk(given) if isinstance(each, ast.arg))
    for each in named:
        each.annotation = None
    return ast.unparse(given)


def format_default(value: ast.expr | None) -> str:
    text = "" if value is None else f"={ast.unparse(value)}"
    return text.replace("field(default_factory=tuple)", "()")


def find_differences(ours: Signature, specified: Signature) -> list[str]:
    """Return the parameters that a call as specified cannot pass, or not leave out."""
    given = [each for each in ours.parameters.values() if each.name != "self"]
    found = {each.name: each for each in given if each.kind is not Parameter.VAR_KEYWORD}
    takes_any = len(found) < len(given)
    wrong: list[str] = []
    for place, each in enumerate(specified.parameters.values()):
        if each.kind is Parameter.VAR_KEYWORD:
            continue
        known = found.pop(each.name, None)
        if known is None:
            wrong += [] if takes_any and each.kind is Parameter.KEYWORD_ONLY else [each.name]
            continue
        is_placed = each.kind is Parameter.KEYWORD_ONLY or given[place] is known
        is_same = each.default in (Parameter.empty, known.default) or is_factory(known)
        wrong += [] if is_placed and is_same else [each.name]
    return wrong + [name for name, each in found.items() if each.default is Parameter.empty]


def is_factory(parameter: Parameter) -> bool:
    return repr(parameter.default) == "<factory>"


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


@pytest.mark.parametrize("line", SIGNATURES.read_text(encoding="utf-8").splitlines())
def test_a_signature_of_the_specification_is_accepted(line: str):
    module, text = line.split(": ")
    name, _, parameters = text.partition("(")
    found: Any = importlib.import_module(module)  # noqa: TID251  # the modules are data here
    for each in name.removesuffix(".__init__").split("."):
        assert hasattr(found, each) or each in found.__dataclass_fields__
        found = getattr(found, each, found)  # a field has no attribute unless it has a slot
    if parameters:
        specified: dict[str, Any] = {}
        exec(f"def call({parameters}: ...", specified)  # the parameters are data here
        assert find_differences(signature(found), signature(specified["call"])) == []


@pytest.mark.parametrize(
    "other", ["a, *, c, b=1", "a, b, *, c=2", "a, *, c=2", "b=1, a=1, *, c=2", "a, b=1, *, c=2, d"]
)
def test_another_signature_is_noticed(other: str):
    made: dict[str, Any] = {}
    exec(f"def ours({other}): ...\ndef specified(a, b=1, *, c=2): ...", made)
    assert find_differences(signature(made["ours"]), signature(made["specified"])) != []


@pytest.mark.skipif(not SPECIFICATION.is_dir(), reason="the specification is not here")
def test_the_signatures_are_those_of_the_specification():
    kept = {each.split(": ")[1] for each in SIGNATURES.read_text(encoding="utf-8").splitlines()}
    texts = {each.name[:3]: each.read_text("utf-8") for each in SPECIFICATION.glob("*.txt")}
    found = {number: set(signatures_of(text)) for number, text in texts.items()}
    renamed = {"SnapshotManager.": "FilesystemSnapshot.", "ArchivableFilesystem.": "Filesystem."}
    for ours, theirs in renamed.items():
        kept = {re.sub(rf"^{re.escape(ours)}", theirs, each) for each in kept}
    assert kept <= set().union(*found.values())
    examples = re.compile(r"(read_file_handler|my_handler|\w+\._\w+|_\w+)\(")
    assert {each for each in found["000"] if not examples.match(each)} <= kept
