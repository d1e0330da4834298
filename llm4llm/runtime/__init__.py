"""What a bundle carries: guard, dispatch, apply, restore, counters. Standard library and torch only."""
