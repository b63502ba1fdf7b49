"""The dialect `gemini`: the tools that the Gemini CLI has, with their parameters."""

from typing import Any

from weakincentives.contrib.tools.dialects.gemini_calls import (
    CountedReplaceCall,
    DeleteCall,
    GlobCall,
    GrepCall,
    ListCall,
    ReadCall,
    ReplaceCall,
    WriteCall,
    glob,
    grep,
    replace,
    say_glob,
    say_grep,
    say_list,
    say_read,
    say_replace,
    say_write,
)
from weakincentives.contrib.tools.dialects.spelling import (
    EDIT_ALIASES,
    as_it_is,
    page,
    word_for_word,
)
from weakincentives.contrib.tools.requests import (
    EditFileParams,
    GlobParams,
    GrepParams,
    LsParams,
    MoveParams,
    ReadFileParams,
    RmParams,
    WriteFileParams,
)
from weakincentives.contrib.tools.shell.requests import BashParams
from weakincentives.contrib.tools.speech import Phrase

_READ = """\
Read a file: up to 2000 lines, each with its number before it; the numbers, start_line and \
end_line count from 1.
Read a file before you change it. For a long file, ask for the lines that matter.
Notebooks are shown as cells, pictures as pictures where you can see them, and other binary files \
as a hex dump."""

_WRITE = """\
Write a file; one that exists is replaced as a whole. Give the complete content: a placeholder for \
what stays as it is would be written as it stands.
$EditFileParams changes a part of a file. At most 48000 characters in one call."""

_REPLACE = """\
Replace text in a file, and return what changed as a diff.
old_string must be in the file exactly once, unless allow_multiple is set: quote it as the file \
has it, without line numbers, with about three lines around it.
Small slips in white space and quotation marks are forgiven where the place is clear, and told.
Use $ReadFileParams first, so that you quote what is there. With an empty old_string, a file that \
does not exist is created."""

_LIST = """\
List a directory: directories first, then files with their sizes. It does not go into directories; \
$GlobParams finds files at any depth."""

_GLOB = """\
Find files by a pattern of their path, sorted by path: "src/**/*.ts", "**/*.md".
"*" stays in one directory and "**" spans any number.
$GrepParams searches what is in files."""

_GREP = """\
Search the lines of files for a regular expression (RE2: no look-around, no back references), and \
return them with their numbers, which count from 1.
Upper and lower case are the same unless case_sensitive is set. Narrow it down with dir_path, \
include_pattern and exclude_pattern; names_only returns paths and no lines. Binary files are not \
searched."""

_DELETE = """\
Remove a file, or a directory with everything in it."""

_MOVE = """\
Move or rename a file or directory; what is at the destination is never replaced."""

_FILE_PATH = {"path": "file_path", "absolute_path": "file_path"}
_DIR_PATH = {"path": "dir_path"}


GEMINI: tuple[Phrase[Any], ...] = (
    Phrase(
        name="list_directory",
        description=_LIST,
        params=ListCall,
        says=(LsParams,),
        understand=lambda params, bench: LsParams(params.dir_path, params.ignore),
        spell=say_list,
        aliases=_DIR_PATH,
        read_only=True,
    ),
    Phrase(
        name="read_file",
        description=_READ,
        params=ReadCall,
        says=(ReadFileParams,),
        understand=lambda params, bench: page(params.file_path, params.start_line, params.end_line),
        spell=say_read,
        aliases=_FILE_PATH,
        read_only=True,
    ),
    Phrase(
        name="write_file",
        description=_WRITE,
        params=WriteCall,
        says=(WriteFileParams,),
        understand=lambda params, bench: WriteFileParams(
            params.file_path, params.content, "overwrite"
        ),
        spell=say_write,
        aliases=_FILE_PATH,
    ),
    Phrase(
        name="replace",
        description=_REPLACE,
        params=ReplaceCall,
        says=(EditFileParams,),
        understand=replace,
        spell=say_replace,
        aliases={**_FILE_PATH, **EDIT_ALIASES, "replace_all": "allow_multiple"},
        other_params=CountedReplaceCall,
    ),
    Phrase(
        name="glob",
        description=_GLOB,
        params=GlobCall,
        says=(GlobParams,),
        understand=glob,
        spell=say_glob,
        aliases=_DIR_PATH,
        read_only=True,
    ),
    Phrase(
        name="grep_search",
        description=_GREP,
        params=GrepCall,
        says=(GrepParams,),
        understand=grep,
        spell=say_grep,
        aliases={**_DIR_PATH, "include": "include_pattern"},
        read_only=True,
        other_names=("search_file_content",),
    ),
    Phrase(
        name="delete_file",
        description=_DELETE,
        params=DeleteCall,
        says=(RmParams,),
        understand=lambda params, bench: RmParams(params.file_path),
        spell=lambda request: DeleteCall(request.path),
        aliases=_FILE_PATH,
        unless=(BashParams,),
    ),
    Phrase(
        name="move_file",
        description=_MOVE,
        params=MoveParams,
        says=(MoveParams,),
        understand=as_it_is,
        spell=word_for_word,
        unless=(BashParams,),
    ),
)
