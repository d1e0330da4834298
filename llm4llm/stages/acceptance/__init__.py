"""Try patches on the live model and keep what pays."""
