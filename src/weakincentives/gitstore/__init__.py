"""A content-addressed store of git objects, packs and refs, read and written without git.

Nothing here depends on workspaces. Other packages import these names from here.
"""

from weakincentives.gitstore.objects import LayeredObjects as LayeredObjects
from weakincentives.gitstore.objects import ObjectError as ObjectError
from weakincentives.gitstore.objects import ObjectStore as ObjectStore
from weakincentives.gitstore.objects import PackedObjects as PackedObjects
from weakincentives.gitstore.objects import is_object_id as is_object_id
from weakincentives.gitstore.pack_reader import CHUNK_SIZE as CHUNK_SIZE
from weakincentives.gitstore.pack_reader import Inflater as Inflater
from weakincentives.gitstore.pack_reader import PackError as PackError
from weakincentives.gitstore.pack_reader import PackReader as PackReader
from weakincentives.gitstore.pack_reader import hash_object as hash_object
from weakincentives.gitstore.pack_reader import max_index_size as max_index_size
from weakincentives.gitstore.pack_writer import PackTransaction as PackTransaction
from weakincentives.gitstore.repository import Repository as Repository
from weakincentives.gitstore.repository import StoreSize as StoreSize
from weakincentives.gitstore.repository import default_git_dir as default_git_dir
from weakincentives.gitstore.trees import DIRECTORY as DIRECTORY
from weakincentives.gitstore.trees import EXECUTABLE as EXECUTABLE
from weakincentives.gitstore.trees import FILE as FILE
from weakincentives.gitstore.trees import ID_BYTES as ID_BYTES
from weakincentives.gitstore.trees import LINK as LINK
from weakincentives.gitstore.trees import TreeEntry as TreeEntry
from weakincentives.gitstore.trees import decode_tree as decode_tree
from weakincentives.gitstore.trees import encode_entry as encode_entry
from weakincentives.gitstore.trees import encode_tree as encode_tree
from weakincentives.gitstore.trees import entry_id as entry_id
from weakincentives.gitstore.trees import entry_key as entry_key
from weakincentives.gitstore.verify import SnapshotProblem as SnapshotProblem
