"""The mirror in a bucket. Invariants are in the room's DESIGN.md, "Mirror in a bucket"."""
