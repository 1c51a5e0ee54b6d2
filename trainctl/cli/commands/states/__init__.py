"""Commands about states."""
