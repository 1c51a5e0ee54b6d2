"""The command line of trainctl.

`main` runs `invoke`, which parses the arguments (`arguments`, `app`) and runs a command.
`commands` has a module per group of commands; a command opens a workspace (`workspaces`), runs
an operation and prints its result. `options` and `help` have the options and help texts.
`plans` creates and prints plans; `plan_execution` applies them.
"""
