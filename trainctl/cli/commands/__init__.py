"""One module a group of commands; a function ``NAME_command`` returns an exit code."""
