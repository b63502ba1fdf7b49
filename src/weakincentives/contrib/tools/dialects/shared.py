"""Descriptions, aliases and request conversions that several dialects share."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, make_dataclass
from types import NoneType
from typing import Any, get_args

from weakincentives.contrib.tools import requests
from weakincentives.contrib.tools.context import ToolSpec, pass_through
from weakincentives.errors import ToolValidationError

EDIT_ALIASES = {
    "old_str": "old_string",
    "oldText": "old_string",
    "old_text": "old_string",
    "oldString": "old_string",
    "new_str": "new_string",
    "newText": "new_string",
    "new_text": "new_string",
    "newString": "new_string",
}
"""Other names that models use for the two texts of a replacement."""

MOVE_ALIASES = {
    "from": "source",
    "old_path": "source",
    "source_path": "source",
    "to": "destination",
    "new_path": "destination",
    "destination_path": "destination",
}
"""Other names that models use for the two paths of a move."""

DIRECTORY_ALIASES = {"file_path": "path", "dir_path": "path", "directory": "path"}
"""Other names that models use for the path of a directory."""

READ_PAGES = """\
Read a file: up to 2000 lines per call, each with its line number. For the rest of a long file, \
set"""
WRITE_WHOLE = """\
Write a whole file; an existing one is replaced. At most 48000 characters per call.
To change part of a file, use $EditFileParams."""
LIST_DIRECTORY = """\
List one directory: subdirectories first, then files with their sizes.
To find files at any depth, use $GlobParams."""
FILE_FORMATS = """\
Notebooks are shown as cells, images as images if you can view them, other binary files as hex."""
EDIT_TOLERANCE = """\
Small differences in whitespace and quotation marks are tolerated where the match is unambiguous, \
and reported."""
CREATES_WITH_EMPTY_OLD = "An empty old_string creates a file that does not exist."
GLOB_SYNTAX = '"*" matches within one directory, "**" across any number of directories.'
REGEX_SYNTAX = "RE2 syntax: no lookaround, no backreferences"
DELETE_DESCRIPTION = "Delete a file, or a directory with everything in it."
MOVE_DESCRIPTION = "Move or rename a file or directory. Fails if the destination exists."


HIDDEN = {"hidden": True}
"""Metadata of a parameter that models know from the vendor: accepted without effect."""


def params(base: type[Any] = object, /, **rows: tuple[Any, ...]) -> type[Any]:
    """Return the dataclass of a tool's parameters.

    Args:
        base: A dataclass with further parameters.
        rows: For each parameter its type and its description for the model, then its default and
            metadata if it has any. One that can be None may be omitted.
    """
    made = [_make_field(name, *row) for name, row in rows.items()]
    return make_dataclass("Parameters", made, bases=(base,), frozen=True, slots=True)


def _make_field(
    name: str, kind: Any, text: str, default: Any = MISSING, metadata: Any = None
) -> tuple[str, Any, Any]:
    if default is MISSING and NoneType in get_args(kind):
        default = None
    described: dict[str, Any] = {"description": text, **(metadata or {})}
    return name, kind, field(default=default, metadata=described)


@dataclass(frozen=True, slots=True)
class FieldMapping:
    """How the parameters of a tool stand for the fields of one request.

    Args:
        params: The parameters; one that is no field of the request has no effect.
        request: The request.
        names: The fields of the request for parameters with other names.
        fixed: The values of fields that have no parameter; by default their defaults.
        fits: Whether the tool can express a request; by default, if fields without a parameter
            have their fixed or default values.
        values: The values of a field for those of a parameter, by parameter.
    """

    params: type[Any]
    request: type[Any]
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    fixed: Mapping[str, object] = field(default_factory=dict[str, object])
    fits: Callable[[Any], bool] | None = None
    values: Mapping[str, Mapping[Any, Any]] = field(default_factory=dict[str, Any])

    def decode(self, params: Any, _context: object = None) -> Any:
        """Return the request for parameters; one that is left out has the request's default."""
        values = {name: getattr(params, name) for name in self._pairs()}
        values |= {name: each[values[name]] for name, each in self.values.items()}
        given = {
            field: values[name]
            for name, field in self._pairs().items()
            if values[name] is not None
            # an empty directory is the default one
            and (values[name] or field != "path" or name not in self._optional)
        }
        return self.request(**given, **self.fixed)

    def encode(self, request: Any) -> Any:
        """Return the parameters for a request; None if they cannot express it."""
        pairs = self._pairs()
        is_fixed = all(getattr(request, name) == value for name, value in self.fixed.items())
        fits = is_fixed and sets_only(request, *pairs.values(), *self.fixed)
        if not (fits if self.fits is None else self.fits(request)):
            return None
        defaults = {each.name: _default(each) for each in fields(request)}
        values = {name: getattr(request, field) for name, field in pairs.items()}
        for name, each in self.values.items():
            values[name] = next(mine for mine, theirs in each.items() if theirs == values[name])
        return self.params(
            **{
                name: value
                for name, value in values.items()
                if value is not None
                and not (name in self._optional and value == defaults[pairs[name]])
            }
        )

    @property
    def _optional(self) -> set[str]:
        return {each.name for each in fields(self.params) if each.default is None}

    def _pairs(self) -> dict[str, str]:
        """Return the parameters that are fields of the request, with the fields."""
        known = {each.name for each in fields(self.request)}
        names = {each.name: self.names.get(each.name, each.name) for each in fields(self.params)}
        return {name: field for name, field in names.items() if field in known}


def mapped(
    name: str,
    description: str,
    mapping: FieldMapping,
    *,
    decode: Callable[[Any, Any], Any] | None = None,
    encode: Callable[[Any], Any] | None = None,
    **options: Any,
) -> ToolSpec[Any]:
    """Return a tool whose parameters stand for the fields of one request."""
    return ToolSpec(
        name=name,
        description=description,
        params=mapping.params,
        requests=(mapping.request,),
        decode=decode or mapping.decode,
        encode=encode or mapping.encode,
        **options,
    )


def map_whole_text(params: type[Any], **names: str) -> FieldMapping:
    """Return the mapping of a tool that writes whole text files and replaces existing ones."""
    return FieldMapping(
        params, requests.WriteFileParams, names, {"mode": "overwrite"}, is_whole_text
    )


DeleteCall: type[Any] = params(file_path=(str, "The file or directory."))


def delete_and_move(
    delete: str, move: str, *, aliases: Mapping[str, str]
) -> tuple[ToolSpec[Any], ToolSpec[Any]]:
    """Return tools to delete and to move files, which a shell makes unnecessary."""
    return (
        mapped(
            delete,
            DELETE_DESCRIPTION,
            FieldMapping(DeleteCall, requests.RmParams, {"file_path": "path"}),
            aliases=aliases,
            superseded_by=(requests.BashParams,),
        ),
        pass_through(
            move,
            requests.MoveParams,
            MOVE_DESCRIPTION,
            aliases=MOVE_ALIASES,
            superseded_by=(requests.BashParams,),
        ),
    )


def edit_tool(
    name: str, description: str, mapping: FieldMapping, other: FieldMapping, **options: Any
) -> ToolSpec[Any]:
    """Return a tool that replaces one text; `other` are the calls that it accepts besides."""

    def encode(request: requests.EditFileParams) -> Any:
        edit = single_edit(request)
        if edit is None:
            return None
        only = (edit.old_string, edit.new_string, edit.replace_all)
        return mapping.encode(requests.EditFileParams(request.file_path, *only))

    return ToolSpec(
        name=name,
        description=description,
        params=mapping.params,
        requests=(requests.EditFileParams,),
        decode=lambda given, _: (other if isinstance(given, other.params) else mapping).decode(
            given
        ),
        encode=encode,
        other_params=other.params,
        **options,
    )


def page_tool(name: str, description: str, params: type[Any], **options: Any) -> ToolSpec[Any]:
    """Return a tool that reads pages of lines, with `offset` counted from 1 and `limit`."""

    def encode(request: requests.ReadFileParams) -> Any:
        first = first_line(request)
        start = {} if first is None else {"offset": first}
        return params(request.file_path, limit=request.limit, **start) if is_page(request) else None

    return ToolSpec(
        name=name,
        description=description,
        params=params,
        requests=(requests.ReadFileParams,),
        decode=lambda given, _: requests.ReadFileParams(
            given.file_path, line_offset(given.offset), given.limit
        ),
        encode=encode,
        read_only=True,
        **options,
    )


def sets_only(request: Any, *names: str) -> bool:
    """Return whether all other fields of a request have their default."""
    return all(
        getattr(request, each.name) == _default(each)
        for each in fields(request)
        if each.name not in names
    )


def path_or_none(path: str) -> str | None:
    """Return a path; None for the workspace root, which tools take as the default."""
    return None if path == "." else path


def line_offset(first: int | None) -> int:
    """Return the number of lines before a line counted from 1; 0 is read as 1."""
    if first is not None and first < 0:
        raise ToolValidationError(f"Lines count from 1: {first!r}")
    return max((first or 1) - 1, 0)


def first_line(request: requests.ReadFileParams) -> int | None:
    """Return the first line of a page, counted from 1; None for the start of the file."""
    first = request.start_line if request.start_line is not None else request.offset + 1
    return first if first > 1 else None


def last_line(request: requests.ReadFileParams) -> int | None:
    """Return the last line of a page, counted from 1; None if the request sets no limit."""
    return None if request.limit is None else (first_line(request) or 1) + request.limit - 1


def page_request(file_path: str, first: int | None, last: int | None) -> requests.ReadFileParams:
    """Return the request for lines `first` to `last`, counted from 1 and inclusive."""
    offset = line_offset(first)
    if last is not None and last <= offset:
        raise ToolValidationError(
            f"The last line must not be before the first: {offset + 1} to {last}"
        )
    return requests.ReadFileParams(file_path, offset, None if last is None else last - offset)


def is_page(request: requests.ReadFileParams) -> bool:
    """Return whether a request is for a non-empty page of lines, in the default view."""
    return sets_only(request, "file_path", "offset", "limit", "start_line") and (
        request.limit is None or request.limit > 0
    )


def is_whole_text(request: requests.WriteFileParams) -> bool:
    """Return whether a request writes a whole text file, and can replace an existing one."""
    return request.encoding == "utf-8" and request.mode != "append"


def single_edit(request: requests.EditFileParams) -> requests.TextEdit | None:
    """Return the only replacement of a request; None if it has several or is a dry run."""
    if request.dry_run:
        return None
    if request.edits:
        return request.edits[0] if len(request.edits) == 1 else None
    if request.old_string is None or request.new_string is None:
        return None
    return requests.TextEdit(request.old_string, request.new_string, request.replace_all)


def _default(each: Field[Any]) -> object:
    if each.default_factory is not MISSING:
        return each.default_factory()
    return each.default


GREP: ToolSpec[requests.GrepParams] = pass_through(
    "grep",
    requests.GrepParams,
    f"""\
Search the lines of files for a regular expression ({REGEX_SYNTAX}). Skips \
binary files and files ignored by .gitignore.
To find files by name, use $GlobParams.""",
    aliases={
        **DIRECTORY_ALIASES,
        "include": "glob",
        "-i": "ignore_case",
        "-A": "after",
        "-B": "before",
        "-C": "context",
        "max_count": "head_limit",
    },
    read_only=True,
)
"""The tool that searches the contents of files, where a dialect has no form of its own."""

REPO_MAP: ToolSpec[requests.RepoMapParams] = pass_through(
    "repo_map",
    requests.RepoMapParams,
    """\
Show the most central source files of the workspace (those that other files use most), with their \
classes, functions and line numbers.
Use it to find your way in unfamiliar code. With path, the map starts there and continues with the \
files that it uses or that use it.""",
    aliases={"file_path": "path", "directory": "path", "tokens": "max_tokens"},
    read_only=True,
)
"""The tool for a repository map; it has one name in all dialects."""
