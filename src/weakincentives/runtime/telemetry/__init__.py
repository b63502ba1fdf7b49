"""Tracing: spans around prompts, model requests, tool calls and filesystem work."""
