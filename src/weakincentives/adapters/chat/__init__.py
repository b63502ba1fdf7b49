"""The Chat Completions wire format, which OpenAI, LiteLLM and many servers speak."""
