"""A workspace in memory."""
