"""One history: the engine behind every change of a live directory, and its records.

Other packages import these names from here.
"""

from weakincentives.history.change import Attributes as Attributes
from weakincentives.history.change import ChangeConflictError as ChangeConflictError
from weakincentives.history.change import ChangeRequest as ChangeRequest
from weakincentives.history.change import ChangeResult as ChangeResult
from weakincentives.history.change import Edit as Edit
from weakincentives.history.change import KeepDisplaced as KeepDisplaced
from weakincentives.history.change import Policy as Policy
from weakincentives.history.change import change as change
from weakincentives.history.change import find_stale as find_stale
from weakincentives.history.entries import EntryState as EntryState
from weakincentives.history.entries import LiveTree as LiveTree
from weakincentives.history.entries import PathChange as PathChange
from weakincentives.history.entries import Place as Place
from weakincentives.history.entries import is_written as is_written
from weakincentives.history.entries import open_file as open_file
from weakincentives.history.entries import open_nothing as open_nothing
from weakincentives.history.entries import read_attributes as read_attributes
from weakincentives.history.entries import write_sparse as write_sparse
from weakincentives.history.records import ChangeRecord as ChangeRecord
from weakincentives.history.records import Ending as Ending
from weakincentives.history.records import RecordError as RecordError
from weakincentives.history.recovery import PendingChange as PendingChange
from weakincentives.history.recovery import Recovery as Recovery
from weakincentives.history.recovery import find_changes as find_changes
from weakincentives.history.recovery import recover_change as recover_change
from weakincentives.history.recovery import remove_abandoned as remove_abandoned
from weakincentives.history.rollback import Kept as Kept
