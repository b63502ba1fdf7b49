"""The in-memory backend."""
