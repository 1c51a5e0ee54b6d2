"""From documents to desired resources: defaults, references, expressions, order. See DESIGN.md beside this file."""
