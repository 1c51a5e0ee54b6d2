"""Terminal output: redaction, layout and progress.

`output` redacts and escapes everything printed; `text` escapes, measures and wraps; `tables`
lay out columns; `progress` redraws lines.
"""
