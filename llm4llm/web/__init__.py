"""Pages and reports for people."""
