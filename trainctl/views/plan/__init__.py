"""Plans as text, Markdown, HTML and JSON."""
