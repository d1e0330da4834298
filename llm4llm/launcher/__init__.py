"""What runs first in a child's process. The standard library alone and nothing of ours: every child waits for it."""
