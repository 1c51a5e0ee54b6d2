"""Format plans: `text` for terminals, `pages` as Markdown and HTML, `json`.

`changes` formats the changes and `tables` the tables that text and pages share.
"""
