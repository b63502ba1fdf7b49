"""Base classes of every backend: the whole protocol, built on a few primitives.

This is also where other packages import what is not public in `weakincentives.filesystem`: text
detection, path checks, globs, ignore rules and helpers for capabilities.
"""

from weakincentives.filesystem.base.readable import ReadableFilesystem as ReadableFilesystem
from weakincentives.filesystem.base.readable import ReadingProxy as ReadingProxy
from weakincentives.filesystem.base.readable import ReadOnlyError as ReadOnlyError
from weakincentives.filesystem.base.readable import content_hash as content_hash
from weakincentives.filesystem.base.readable import page_timeout_error as page_timeout_error
from weakincentives.filesystem.base.readable import read_only_view as read_only_view
from weakincentives.filesystem.base.readable import readonly as readonly
from weakincentives.filesystem.base.searchable import Primitives as Primitives
from weakincentives.filesystem.base.searchable import SearchableFilesystem as SearchableFilesystem
from weakincentives.filesystem.base.searchable import is_skippable as is_skippable
from weakincentives.filesystem.base.searchable import link_error as link_error
from weakincentives.filesystem.base.state import State as State
from weakincentives.filesystem.base.state import open_state as open_state
from weakincentives.filesystem.base.writable import StaleContentError as StaleContentError
from weakincentives.filesystem.base.writable import WritableFilesystem as WritableFilesystem
from weakincentives.filesystem.base.writable import ensure_overwritable as ensure_overwritable
from weakincentives.filesystem.glob import Predicate as Predicate
from weakincentives.filesystem.glob import compile_filter as compile_filter
from weakincentives.filesystem.grep import Searcher as Searcher
from weakincentives.filesystem.grep import compile_regex as compile_regex
from weakincentives.filesystem.ignore import IGNORE_FILES as IGNORE_FILES
from weakincentives.filesystem.ignore import MAX_IGNORE_FILE as MAX_IGNORE_FILE
from weakincentives.filesystem.ignore import IgnoreRules as IgnoreRules
from weakincentives.filesystem.limits import limits_of as limits_of
from weakincentives.filesystem.limits import share_of_time as share_of_time
from weakincentives.filesystem.paths import TOOL_OUTPUT as TOOL_OUTPUT
from weakincentives.filesystem.paths import check_new_path as check_new_path
from weakincentives.filesystem.paths import is_tool_output as is_tool_output
from weakincentives.filesystem.paths import outermost as outermost
from weakincentives.filesystem.protocol import CHANGING_METHODS as CHANGING_METHODS
from weakincentives.filesystem.savepoints import WriteLock as WriteLock
from weakincentives.filesystem.savepoints import hold_lock as hold_lock
from weakincentives.filesystem.savepoints import open_savepoint as open_savepoint
from weakincentives.filesystem.text import BINARY_PREFIX as BINARY_PREFIX
from weakincentives.filesystem.text import SNIFF_LENGTH as SNIFF_LENGTH
from weakincentives.filesystem.text import LineIndex as LineIndex
from weakincentives.filesystem.text import is_binary as is_binary
