"""One run: its directory, its processes, its mounts, its log."""
