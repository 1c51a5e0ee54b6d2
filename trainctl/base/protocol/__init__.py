"""How the operator's side and programs on nodes speak: lines, frames, rows, requests and answers."""
