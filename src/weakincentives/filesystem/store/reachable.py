"""What the commits of a store refer to, directly and through one another."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from weakincentives.filesystem.store.commits import commit_references, decode_commit, tag_reference
from weakincentives.filesystem.store.objects import ObjectError, ObjectStore
from weakincentives.filesystem.store.trees import tree_references


@dataclass(frozen=True, slots=True)
class Reachable:
    """The objects to keep, without repetition, and the commits whose parents are not kept."""

    commits: dict[str, None] = field(default_factory=dict[str, None])
    trees: dict[str, None] = field(default_factory=dict[str, None])
    blobs: dict[str, None] = field(default_factory=dict[str, None])
    cut: set[str] = field(default_factory=set[str])

    def __iter__(self) -> Iterator[str]:
        """Yield every object: first what says most, last what is largest."""
        yield from self.commits
        yield from self.trees
        yield from self.blobs


def reachable(objects: ObjectStore, refs: Iterable[str], *, content: bool = True) -> Reachable:
    """Return what must be kept so that `refs` can be read.

    A commit of ours does not keep its parents: each snapshot is kept by a ref of its
    own. A commit that a person has made keeps all that was before it. Without `content`
    only commits and tags are looked at.

    Raises:
        ObjectError: A commit or a tree is missing or damaged.
    """
    found = Reachable()
    wanted = set(refs)
    parents: dict[str, list[str]] = {}
    pending = sorted(wanted)
    while pending:
        ref = pending.pop()
        if ref in found.commits or ref in found.trees or ref in found.blobs:
            continue
        kind, data = objects.read(ref)
        if kind in {"commit", "tag"}:
            found.commits[ref] = None
        if kind == "commit":
            tree, parents[ref] = commit_references(data)
            pending += [] if _is_ours(ref, data) else parents[ref]
            if content:
                _add_tree(objects, tree, found)
        elif kind == "tag":
            pending.append(tag_reference(data))
        elif kind == "tree":
            _add_tree(objects, ref, found)
        else:
            found.blobs[ref] = None
    found.cut.update(ref for ref, each in parents.items() if not found.commits.keys() >= set(each))
    return found


def _add_tree(objects: ObjectStore, tree: str, found: Reachable) -> None:
    pending = [tree]
    while pending:
        tree = pending.pop()
        if tree in found.trees:
            continue
        kind, data = objects.read(tree)
        if kind != "tree":
            raise ObjectError(f"Object is no tree but a {kind}: {tree!r}")
        found.trees[tree] = None
        for is_tree, object_id in tree_references(data):
            if is_tree:
                pending.append(object_id)
            else:
                found.blobs[object_id] = None


def _is_ours(ref: str, data: bytes) -> bool:
    try:
        decode_commit(ref, data)
    except ObjectError:
        return False
    return True
