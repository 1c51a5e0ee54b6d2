"""The ranks of one run: how they find each other, begin, fail and begin again together."""
