"""The ordered stage table and the one function that advances a job."""
