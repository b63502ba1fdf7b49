"""The dialect `classic`: four tools over whole files, with strict paths."""

from typing import Any

from weakincentives.contrib.tools.dialects.classic_calls import (
    DeleteFile,
    ListDirectory,
    ReadFile,
    WriteFileCall,
    read,
    say_delete,
    say_list,
    say_read,
    say_write,
    show_delete,
    show_list,
    show_read,
    show_write,
    write,
)
from weakincentives.contrib.tools.requests import (
    LsParams,
    ReadFileParams,
    RmParams,
    WriteFileParams,
)
from weakincentives.contrib.tools.speech import Phrase

_LIST = """\
List a directory: its directories and files, without going into directories.
Use it to look around before you read or write, one directory at a time."""

_READ = """\
Read a file. Text is returned with the number of each line before it, which counts from 1, 2000 \
lines at a time; what is binary is returned as base64.
offset counts from 0 and leads to the rest of a long file."""

_WRITE = """\
Create a file with the given content, and the directories on the way to it.
A file that exists is left alone unless mode is "overwrite" (replace it) or "append" (add to its \
end): to change a file, use $ReadFileParams, then write all of it with mode "overwrite".
At most 48000 characters, or bytes, in one call. Keep binary files small."""

_DELETE = """\
Remove a file, or a directory with everything in it; nothing beside it is touched."""

_PATH = {"file_path": "path"}

CLASSIC: tuple[Phrase[Any], ...] = (
    Phrase(
        name="list_directory",
        description=_LIST,
        params=ListDirectory,
        says=(LsParams,),
        understand=lambda params, bench: LsParams(
            str(params.path or "") or ".", offset=params.offset
        ),
        spell=say_list,
        aliases={"dir_path": "path"},
        show=show_list,
        read_only=True,
    ),
    Phrase(
        name="read_file",
        description=_READ,
        params=ReadFile,
        says=(ReadFileParams,),
        understand=read,
        spell=say_read,
        aliases=_PATH,
        show=show_read,
        read_only=True,
    ),
    Phrase(
        name="write_file",
        description=_WRITE,
        params=WriteFileCall,
        says=(WriteFileParams,),
        understand=write,
        spell=say_write,
        aliases=_PATH,
        show=show_write,
    ),
    Phrase(
        name="delete_file",
        description=_DELETE,
        params=DeleteFile,
        says=(RmParams,),
        understand=lambda params, bench: RmParams(str(params.path)),
        spell=say_delete,
        aliases=_PATH,
        show=show_delete,
    ),
)
