"""Format plans: `text` for terminals, `pages` as Markdown, `html`, `json`.

`changes` formats the changes and `tables` the tables that text and pages share.
"""
