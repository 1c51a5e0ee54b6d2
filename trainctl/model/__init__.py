"""The nouns: values without input or output, imported by everything and importing only ``errors``."""
