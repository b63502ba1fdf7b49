"""Snapshots of a host directory: captured into git objects, viewed and restored."""
