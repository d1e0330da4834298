"""Thin: read the request, call service/, answer."""
