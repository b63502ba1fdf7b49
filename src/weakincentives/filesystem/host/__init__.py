"""A workspace in a host directory."""
