"""Takes jobs by lease and walks their stages with real children."""
