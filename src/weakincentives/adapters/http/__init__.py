"""HTTP for SDK adapters: requests with a timeout, bounded bodies, server-sent events, errors."""
