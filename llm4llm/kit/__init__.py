"""Small tools without domain words: canonical JSON, ids, clock, files, statistics."""
