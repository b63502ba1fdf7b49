"""HTTP for the SDK adapters: one adapter base, bounded responses, server-sent events, errors."""
