"""Submit, cancel and read jobs; shared by every surface."""
