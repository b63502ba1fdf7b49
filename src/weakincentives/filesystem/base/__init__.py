"""Base classes of every backend: the whole protocol, built on a few primitives."""

from weakincentives.filesystem.base.primitives import is_skippable as is_skippable
from weakincentives.filesystem.base.primitives import link_error as link_error
from weakincentives.filesystem.base.readable import ReadableFilesystem as ReadableFilesystem
from weakincentives.filesystem.base.readable import ReadOnlyError as ReadOnlyError
from weakincentives.filesystem.base.readable import content_hash as content_hash
from weakincentives.filesystem.base.readable import page_timeout_error as page_timeout_error
from weakincentives.filesystem.base.readonly import readonly as readonly
from weakincentives.filesystem.base.searchable import SearchableFilesystem as SearchableFilesystem
from weakincentives.filesystem.base.writable import WritableFilesystem as WritableFilesystem
from weakincentives.filesystem.base.writable import ensure_overwritable as ensure_overwritable
