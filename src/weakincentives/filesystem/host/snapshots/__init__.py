"""Snapshots of a host directory: captured, looked into and restored."""
