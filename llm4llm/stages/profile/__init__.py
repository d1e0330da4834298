"""Replay the driver calls and rank hotspots."""
