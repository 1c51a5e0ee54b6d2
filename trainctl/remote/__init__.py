"""Calling the node program through a transport. See DESIGN.md beside this file."""
