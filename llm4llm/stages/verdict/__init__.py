"""Judge a candidate in fresh processes."""
