"""Prompts: sections of text with their tools, rendered for a model."""

from weakincentives.errors import PromptError
from weakincentives.prompt.overrides import (
    LocalPromptOverridesStore,
    PromptDescriptor,
    PromptOverride,
    PromptOverridesStore,
    StaleOverride,
    TextOverride,
    text_hash,
)
from weakincentives.prompt.prompt import Prompt, PromptTemplate
from weakincentives.prompt.rendering import RenderedPrompt
from weakincentives.prompt.section import MarkdownSection, Section, WorkspaceSection
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

__all__ = [
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
    "WorkspaceSection",
    "text_hash",
]
