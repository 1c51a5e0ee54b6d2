"""Format values and events as text, JSON, CSV, Markdown and HTML.

`terminal` has output, escaping, tables and progress: everything printed goes through
`terminal.output.TerminalOutput`. `plan` formats plans; `problems` errors and diagnostics;
`events` the events of an apply. The other modules format the output of the commands of their name.
"""
