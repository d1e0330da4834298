"""Pack accepted patches into a reversible archive."""
