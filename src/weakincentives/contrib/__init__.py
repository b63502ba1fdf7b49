"""Batteries: tools and sections built on the layers below."""
