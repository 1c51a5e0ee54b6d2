"""The state as a log of entries and the fold of it. See DESIGN.md beside this file."""
