"""Turn hotspots into reproducible task folders."""
