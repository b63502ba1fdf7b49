"""Workspace digests: what a model should know about a repository before its first step.

A session has one digest per section key, in the `WorkspaceDigest` slice. The text of a digest
comes from files that anybody may have written, so a prompt quotes it with `quote_data`.
"""

import hashlib
import re
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable
from uuid import UUID

from weakincentives.characters import INVISIBLE
from weakincentives.prompt.section import Section, WorkspaceSection
from weakincentives.runtime.session import Reducer, Session

MAX_DIGEST_CHARACTERS = 16_000
"""Maximum length of a digest that a model writes."""
DIGEST_KEY = "workspace-digest"
"""The default key of a section with a digest."""
_VISIBLE_SPACE = "\n\t"
_MARK_LENGTH = 16  # hexadecimal digits


@dataclass(frozen=True, slots=True)
class WorkspaceDigest:
    """A summary of a workspace, for the section with this key.

    Args:
        section_key: The key of the section that shows it.
        body: The text, in Markdown.
        tree_hash: The hash of the files that it was computed from; empty if a model wrote it.
    """

    section_key: str
    body: str
    tree_hash: str = ""


@runtime_checkable
class DigestSection(Protocol):
    """A section that shows a digest, and knows how a model can explore the workspace for it."""

    key: str

    def explore(self, workspace: WorkspaceSection) -> Section[Any]:
        """Return a section with read-only tools for a workspace, and what is known about it."""
        ...


def set_workspace_digest(
    session: Session, section_key: str, body: str, *, tree_hash: str = ""
) -> WorkspaceDigest:
    """Store a digest in a session, in place of an earlier one with this key; return it.

    Raises:
        ValueError: The text is empty.
    """
    if not body.strip():
        raise ValueError(f"The digest for section {section_key!r} is empty")
    digest = WorkspaceDigest(section_key, body, tree_hash)
    _dispatch(session, section_key, digest)
    return digest


def latest_workspace_digest(session: Session, section_key: str) -> WorkspaceDigest | None:
    """Return the digest for a section, or None if the session has none."""
    found = session[WorkspaceDigest].where(lambda each: each.section_key == section_key)
    return found[-1] if found else None


def clear_workspace_digest(session: Session, section_key: str) -> None:
    """Remove the digest for a section from a session."""
    _dispatch(session, section_key, None)


def check_digest(text: str) -> str:
    """Return a digest that a model wrote, without the space around it.

    Raises:
        ValueError: It is empty, too long, or has control or invisible characters.
    """
    digest = text.strip()
    if not digest:
        raise ValueError("The digest is empty")
    if len(digest) > MAX_DIGEST_CHARACTERS:
        raise ValueError(
            f"The digest has {len(digest):,} characters, more than {MAX_DIGEST_CHARACTERS:,}"
        )
    for match in INVISIBLE.finditer(digest):
        if match[0] not in _VISIBLE_SPACE:
            raise ValueError(
                f"The digest has a control or invisible character: U+{ord(match[0]):04X}"
                f" at {match.start()}"
            )
    return digest


def quote_data(text: str, *, name: str) -> str:
    """Return a text between two tags, for a prompt that explains that they enclose data.

    The text cannot end the quotation: a `<` that would begin a tag of this name is replaced by
    `&lt;`, and the tags have a hash of the text. Invisible characters are escaped. The same text
    gives the same bytes.

    Args:
        text: Text that anybody may have written.
        name: The name of the tags: letters, digits and `-`.
    """
    visible = INVISIBLE.sub(_escape_invisible, text.strip("\n"))
    inert = re.sub(rf"<(?=[\s/]*{re.escape(name)})", "&lt;", visible, flags=re.IGNORECASE)
    mark = hashlib.sha256(inert.encode()).hexdigest()[:_MARK_LENGTH]
    return f"<{name} {mark}>\n{inert}\n</{name} {mark}>"


def _escape_invisible(match: re.Match[str]) -> str:
    character = match[0]
    if character in _VISIBLE_SPACE:
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


@dataclass(frozen=True, slots=True)
class _DigestChanged:
    """The digest for a section has changed; None if it was removed."""

    session_id: UUID
    section_key: str
    digest: WorkspaceDigest | None


def _dispatch(session: Session, section_key: str, digest: WorkspaceDigest | None) -> None:
    session[WorkspaceDigest].register(_DigestChanged, _reducer_for(session.session_id))
    session.dispatch(_DigestChanged(session.session_id, section_key, digest))


def _reducer_for(session_id: UUID) -> Reducer[WorkspaceDigest, _DigestChanged]:
    def change(
        items: tuple[WorkspaceDigest, ...], event: _DigestChanged
    ) -> tuple[WorkspaceDigest, ...]:
        if event.session_id != session_id:  # several sessions may share a bus
            return items
        others = tuple(each for each in items if each.section_key != event.section_key)
        return others if event.digest is None else (*others, event.digest)

    return change
