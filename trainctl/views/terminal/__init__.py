"""Terminal output: redaction, layout and progress.

`output` redacts and escapes everything printed; `text` escapes, measures, wraps and lays out
tables; `progress` redraws lines.
"""
