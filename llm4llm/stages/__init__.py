"""The stages of a job; each one is a function from stored inputs to a stored result."""
