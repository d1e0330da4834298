"""Run the user's script once and record what it makes its models do."""
