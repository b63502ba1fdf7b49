"""Measure the workspace beside what a user would pick instead, and beside physical limits."""
