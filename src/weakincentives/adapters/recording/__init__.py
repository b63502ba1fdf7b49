"""Scripted, recorded and replayed conversations."""
