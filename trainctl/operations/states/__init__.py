"""Operations on states: queries, edits, moves, and files that manifests extend."""
