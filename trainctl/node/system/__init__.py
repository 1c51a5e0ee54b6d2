"""What every other part stands on: files, locks, processes, time and names."""
