"""The dialect `claude`: the tools that Claude Code has, with their parameters."""

from typing import Any

from weakincentives.contrib.tools.dialects.claude_calls import (
    Delete,
    Edit,
    Glob,
    Grep,
    MultiEdit,
    Read,
    Write,
    edit,
    glob,
    grep,
    read,
    say_edit,
    say_glob,
    say_grep,
    say_read,
    say_write,
    write,
)
from weakincentives.contrib.tools.dialects.spelling import (
    EDIT_ALIASES,
    as_it_is,
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
Read a file: up to 2000 lines, each with its number before it; the numbers, and offset, count \
from 1.
Read a file before you edit it or write over it. For a long file, page with offset and limit.
Notebooks are shown as cells, pictures as pictures where you can see them, and other binary files \
as a hex dump.
It reads files only; $GlobParams finds them."""

_WRITE = """\
Write a file; one that exists is replaced as a whole.
Read a file that exists first, and prefer $EditFileParams for changing a part of it.
At most 48000 characters in one call."""

_EDIT = """\
Replace text in a file, and return what changed as a diff.
old_string must be in the file exactly once, unless replace_all is set: quote it as the file has \
it, without the line numbers that $ReadFileParams shows, and with enough around it to be unique.
Small slips in white space and quotation marks are forgiven where the place is clear, and told.
With an empty old_string, a file that does not exist is created."""

_GLOB = """\
Find files by a pattern of their path: "**/*.js", "src/**/*.ts"; sorted by path. "**/*" with a \
path shows all that is in a directory.
"*" stays in one directory and "**" spans any number. Files that .gitignore leaves out are not \
found.
$GrepParams searches what is in files."""

_GREP = """\
Search files for a regular expression (RE2: no look-around, no back references; special \
characters that are meant as such need a backslash).
output_mode "files_with_matches", the default, returns paths; "content" returns lines with their \
numbers, which count from 1, and takes -A, -B and -C; "count" returns how many lines match in each \
file.
Narrow it down with path, glob ("*.js") or type ("py"). A pattern matches within one line.
Binary files, and files that .gitignore leaves out, are not searched."""

_DELETE = """\
Remove a file, or a directory with everything in it."""

_MOVE = """\
Move or rename a file or directory; what is at the destination is never replaced."""

_FILE_PATH = {"path": "file_path"}


CLAUDE: tuple[Phrase[Any], ...] = (
    Phrase(
        name="Read",
        description=_READ,
        params=Read,
        says=(ReadFileParams,),
        understand=read,
        spell=say_read,
        aliases=_FILE_PATH,
        read_only=True,
    ),
    Phrase(
        name="Write",
        description=_WRITE,
        params=Write,
        says=(WriteFileParams,),
        understand=write,
        spell=say_write,
        aliases=_FILE_PATH,
    ),
    Phrase(
        name="Edit",
        description=_EDIT,
        params=Edit,
        says=(EditFileParams,),
        understand=edit,
        spell=say_edit,
        aliases={**_FILE_PATH, **EDIT_ALIASES},
        other_names=("MultiEdit",),
        other_params=MultiEdit,
    ),
    Phrase(
        name="Glob",
        description=_GLOB,
        params=Glob,
        says=(GlobParams, LsParams),
        understand=glob,
        spell=say_glob,
        read_only=True,
    ),
    Phrase(
        name="Grep",
        description=_GREP,
        params=Grep,
        says=(GrepParams,),
        understand=grep,
        spell=say_grep,
        read_only=True,
    ),
    Phrase(
        name="Delete",
        description=_DELETE,
        params=Delete,
        says=(RmParams,),
        understand=lambda params, bench: RmParams(params.file_path),
        spell=lambda request: Delete(request.path),
        aliases=_FILE_PATH,
        unless=(BashParams,),
    ),
    Phrase(
        name="Move",
        description=_MOVE,
        params=MoveParams,
        says=(MoveParams,),
        understand=as_it_is,
        spell=word_for_word,
        unless=(BashParams,),
    ),
)
