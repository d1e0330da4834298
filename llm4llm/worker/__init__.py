"""Walks the stages of a job with real children."""
