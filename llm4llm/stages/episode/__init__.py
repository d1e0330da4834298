"""Let an agent propose candidates for a task."""
