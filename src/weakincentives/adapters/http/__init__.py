"""HTTP for SDK adapters: requests with a timeout, bounded bodies, server-sent events, errors."""

from weakincentives.adapters.http.redaction import redact_url as redact_url
