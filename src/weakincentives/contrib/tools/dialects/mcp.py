"""The dialect `mcp`: the names of the reference server for files, and `delete_file`."""

from typing import Any

from weakincentives.contrib.tools.dialects.mcp_calls import (
    EditCall,
    PathCall,
    PathsCall,
    ReadTextCall,
    SearchCall,
    TreeCall,
    WriteCall,
    edit,
    read_media,
    read_text,
    say_edit,
    say_read_media,
    say_read_text,
    say_search,
    say_tree,
    say_write,
    search,
    write,
)
from weakincentives.contrib.tools.dialects.spelling import (
    EDIT_ALIASES,
    as_it_is,
    says_only,
    word_for_word,
)
from weakincentives.contrib.tools.requests import (
    EditFileParams,
    GlobParams,
    LsParams,
    MkdirParams,
    MoveParams,
    ReadFileParams,
    ReadManyParams,
    RmParams,
    StatParams,
    TreeParams,
    WorkspaceParams,
    WriteFileParams,
)
from weakincentives.contrib.tools.speech import Phrase

_READ = """\
Read a file as text, 2000 lines at a time, each with its number before it; the numbers count \
from 1.
head returns only the first lines, tail only the last ones; start_line goes on with the rest of a \
long file."""

_MEDIA = """\
Read a picture, so that you can look at it where you can see, or the bytes of any other file as \
base64."""

_MANY = """\
Read several files at once; one that cannot be read does not keep the others back."""

_WRITE = """\
Write a file; one that exists is replaced as a whole. At most 48000 characters in one call.
$EditFileParams changes a part of a file."""

_EDIT = """\
Replace text in a file: each oldText, which must be in it exactly once, by its newText; all of \
them, or none. The answer is a diff.
Quote oldText as the file has it, without line numbers, with enough lines around it. Small slips \
in white space and quotation marks are forgiven where the place is clear, and told.
dryRun shows the difference and changes nothing."""

_MKDIR = """\
Make a directory, and those on the way to it; one that exists is fine."""

_LIST = """\
List a directory: directories first, with a slash, then files with their sizes. It does not go \
into directories.
$TreeParams does."""

_SIZES = """\
List a directory: directories first, with a slash, then files with their sizes."""

_TREE = """\
Show a directory and everything below it as a tree. Leave out what is large and does not matter \
with excludePatterns."""

_MOVE = """\
Move or rename a file or directory; what is at the destination is never replaced."""

_SEARCH = """\
Find files by a pattern of their path: "*.md" finds them in the directory itself, "**/*.md" at any \
depth; a pattern that ends in "/" finds directories. It does not look at what is in files."""

_INFO = """\
Say what is at a path: its kind, size, dates and permissions."""

_ALLOWED = """\
Say which files can be reached, and how paths are written."""

_DELETE = """\
Remove a file, or a directory with everything in it."""

_PATH = {"file_path": "path"}
_TEXTS = {name: field for name, field in EDIT_ALIASES.items() if not name.endswith("Text")}

_READING: tuple[Phrase[Any], ...] = (
    Phrase(
        name="read_text_file",
        description=_READ,
        params=ReadTextCall,
        says=(ReadFileParams,),
        understand=read_text,
        spell=say_read_text,
        aliases=_PATH,
        read_only=True,
    ),
    Phrase(
        name="read_media_file",
        description=_MEDIA,
        params=PathCall,
        says=(ReadFileParams,),
        understand=read_media,
        spell=say_read_media,
        aliases=_PATH,
        read_only=True,
    ),
    Phrase(
        name="read_multiple_files",
        description=_MANY,
        params=PathsCall,
        says=(ReadManyParams,),
        understand=lambda params, bench: ReadManyParams(params.paths),
        spell=lambda request: PathsCall(request.file_paths),
        read_only=True,
    ),
)

_WRITING: tuple[Phrase[Any], ...] = (
    Phrase(
        name="write_file",
        description=_WRITE,
        params=WriteCall,
        says=(WriteFileParams,),
        understand=write,
        spell=say_write,
        aliases=_PATH,
    ),
    Phrase(
        name="edit_file",
        description=_EDIT,
        params=EditCall,
        says=(EditFileParams,),
        understand=edit,
        spell=say_edit,
        aliases={**_PATH, **_TEXTS},
    ),
    Phrase(
        name="create_directory",
        description=_MKDIR,
        params=PathCall,
        says=(MkdirParams,),
        understand=lambda params, bench: MkdirParams(params.path),
        spell=lambda request: PathCall(request.path),
    ),
    Phrase(
        name="move_file",
        description=_MOVE,
        params=MoveParams,
        says=(MoveParams,),
        understand=as_it_is,
        spell=word_for_word,
    ),
    Phrase(
        name="delete_file",
        description=_DELETE,
        params=PathCall,
        says=(RmParams,),
        understand=lambda params, bench: RmParams(params.path),
        spell=lambda request: PathCall(request.path),
        aliases=_PATH,
    ),
)

_FINDING: tuple[Phrase[Any], ...] = (
    Phrase(
        name="list_directory",
        description=_LIST,
        params=PathCall,
        says=(LsParams,),
        understand=lambda params, bench: LsParams(params.path),
        spell=lambda request: PathCall(request.path) if says_only(request, "path") else None,
        read_only=True,
    ),
    Phrase(
        name="list_directory_with_sizes",
        description=_SIZES,
        params=PathCall,
        says=(LsParams,),
        understand=lambda params, bench: LsParams(params.path),
        spell=lambda request: PathCall(request.path) if says_only(request, "path") else None,
        read_only=True,
    ),
    Phrase(
        name="directory_tree",
        description=_TREE,
        params=TreeCall,
        says=(TreeParams,),
        understand=lambda params, bench: TreeParams(params.path, params.exclude),
        spell=say_tree,
        read_only=True,
    ),
    Phrase(
        name="search_files",
        description=_SEARCH,
        params=SearchCall,
        says=(GlobParams,),
        understand=search,
        spell=say_search,
        read_only=True,
    ),
    Phrase(
        name="get_file_info",
        description=_INFO,
        params=PathCall,
        says=(StatParams,),
        understand=lambda params, bench: StatParams(params.path),
        spell=lambda request: PathCall(request.path),
        read_only=True,
    ),
    Phrase(
        name="list_allowed_directories",
        description=_ALLOWED,
        params=WorkspaceParams,
        says=(WorkspaceParams,),
        understand=as_it_is,
        spell=word_for_word,
        read_only=True,
    ),
)

MCP: tuple[Phrase[Any], ...] = (*_READING, *_WRITING, *_FINDING)
