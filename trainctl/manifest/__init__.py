"""From text to checked documents: files, positions, the types of every section. See DESIGN.md beside this file."""
