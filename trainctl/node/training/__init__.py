"""Training caches: read-write directories that runs and states share."""
