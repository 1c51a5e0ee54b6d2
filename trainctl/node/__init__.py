"""What runs on nodes: standard library only, Python 3.8, imports nothing of ours. See DESIGN.md beside this file."""
