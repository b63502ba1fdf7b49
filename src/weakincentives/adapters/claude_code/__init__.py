"""Claude Code as the agent loop, through the Claude Agent SDK: the extra `claude-agent-sdk`."""

from weakincentives.adapters.claude_code.adapter import FILE_TOOLS, ClaudeAgentAdapter

__all__ = ["FILE_TOOLS", "ClaudeAgentAdapter"]
