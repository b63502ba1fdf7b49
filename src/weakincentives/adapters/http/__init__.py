"""HTTP for the SDK adapters: one adapter base, bounded responses, server-sent events, errors."""

from weakincentives.adapters.http.redaction import redact_url as redact_url
