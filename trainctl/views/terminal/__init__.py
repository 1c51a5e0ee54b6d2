"""The terminal: redacted output, escaping, widths and tables, progress."""
