"""Terminal output: redaction, layout and progress.

`output` redacts and escapes everything printed; `tables` and `text` lay out; `progress` redraws;
`sanitize` escapes untrusted text.
"""
