"""Start a child process with limits, talk to it, kill its group; knows no kernels."""
