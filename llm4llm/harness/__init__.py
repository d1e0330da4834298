"""Code that runs in a child: capture, replay, profile, extract, judge, patch trial."""
