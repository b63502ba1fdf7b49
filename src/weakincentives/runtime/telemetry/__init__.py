"""Tracing: spans for prompts, model requests, tool calls and filesystem operations."""
