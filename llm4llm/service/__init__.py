"""Submit, cancel and read a job; shared by every front end."""
