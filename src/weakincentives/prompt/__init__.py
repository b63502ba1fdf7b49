"""Prompts: sections of text with their tools, rendered for a model."""

from weakincentives.errors import PromptError
from weakincentives.prompt.arguments import display_names as display_names
from weakincentives.prompt.digest import (
    DIGEST_KEY,
    MAX_DIGEST_CHARACTERS,
    DigestSection,
    WorkspaceDigest,
    check_digest,
    clear_workspace_digest,
    latest_workspace_digest,
    quote_data,
    set_workspace_digest,
)
from weakincentives.prompt.overrides import (
    LocalPromptOverridesStore,
    PromptDescriptor,
    PromptOverride,
    PromptOverridesStore,
    StaleOverride,
    TextOverride,
    text_hash,
)
from weakincentives.prompt.overrides import find_stale_overrides as find_stale_overrides
from weakincentives.prompt.prompt import Prompt, PromptTemplate, RenderedPrompt
from weakincentives.prompt.section import MarkdownSection, Section, WorkspaceSection
from weakincentives.prompt.section import walk as walk
from weakincentives.prompt.tool import (
    Media,
    PromptProtocol,
    ProviderAdapterProtocol,
    Renderable,
    RenderedPromptProtocol,
    SessionProtocol,
    Tool,
    ToolAccess,
    ToolContext,
    ToolExample,
    ToolHandler,
    ToolResult,
)
from weakincentives.prompt.validation import check_argument as check_argument
from weakincentives.prompt.validation import check_items as check_items

__all__ = [
    "DIGEST_KEY",
    "MAX_DIGEST_CHARACTERS",
    "DigestSection",
    "LocalPromptOverridesStore",
    "MarkdownSection",
    "Media",
    "Prompt",
    "PromptDescriptor",
    "PromptError",
    "PromptOverride",
    "PromptOverridesStore",
    "PromptProtocol",
    "PromptTemplate",
    "ProviderAdapterProtocol",
    "Renderable",
    "RenderedPrompt",
    "RenderedPromptProtocol",
    "Section",
    "SessionProtocol",
    "StaleOverride",
    "TextOverride",
    "Tool",
    "ToolAccess",
    "ToolContext",
    "ToolExample",
    "ToolHandler",
    "ToolResult",
    "WorkspaceDigest",
    "WorkspaceSection",
    "check_digest",
    "clear_workspace_digest",
    "latest_workspace_digest",
    "quote_data",
    "set_workspace_digest",
    "text_hash",
]
