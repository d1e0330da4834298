"""Frozen types that carry the story, one noun per file; no I/O, no torch, no SQL."""
