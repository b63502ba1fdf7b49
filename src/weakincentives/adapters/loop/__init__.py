"""The agent loop: model requests, tool calls, timeouts and structured output."""
