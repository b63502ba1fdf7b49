"""The agent loop: model requests, tool calls, limits and structured output."""
