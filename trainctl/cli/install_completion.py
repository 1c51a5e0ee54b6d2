"""Install shell completion: a script that asks ``cli.completion``, and a line that loads it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from trainctl.errors import UsageError

_BASH = """\
_trainctl_completion() {
    mapfile -t COMPREPLY < <(env _TRAINCTL_COMPLETE=complete_bash \\
        COMP_WORDS="$(printf '%s\\n' "${COMP_WORDS[@]}")" COMP_CWORD="$COMP_CWORD" "$1" 2>/dev/null)
}
complete -o default -F _trainctl_completion trainctl
"""
_ZSH = """\
#compdef trainctl
local -a answers
answers=("${(@f)$(env _TRAINCTL_COMPLETE=complete_zsh COMP_CWORD=$((CURRENT - 1)) \\
    COMP_WORDS="${(F)words}" $words[1] 2>/dev/null)}")
if [[ -n $answers ]]; then _describe -V trainctl answers; else _files; fi
"""
_FISH = """\
function __trainctl_complete
    set -l answers (env _TRAINCTL_COMPLETE=complete_fish \\
        COMP_WORDS=(commandline -cp | string collect -N) trainctl 2>/dev/null)
    if set -q answers[1]
        printf '%s\\n' $answers
    else
        __fish_complete_path (commandline -ct)
    end
end
complete --command trainctl --no-files --keep-order --arguments '(__trainctl_complete)'
"""
_SHELLS = {
    "bash": (_BASH, ".bash_completions/trainctl.sh", ".bashrc", "source ~/.bash_completions/trainctl.sh"),
    "zsh": (_ZSH, ".zfunc/_trainctl", ".zshrc", "fpath+=~/.zfunc; autoload -Uz compinit; compinit"),
    "fish": (_FISH, ".config/fish/completions/trainctl.fish", "", ""),
}  # fmt: skip
"""By shell: the script, its place, and the file and the line that load it; all below the home directory."""


def install() -> tuple[str, Path]:
    """Write the script of the current shell; return the shell and the script's path."""
    shell = _current_shell()
    if shell not in _SHELLS:
        raise UsageError(f"no completion for shell {shell!r}", f"Use one of: {', '.join(_SHELLS)}.")
    script, place, settings, line = _SHELLS[shell]
    path = Path.home() / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script)
    if settings:
        with (Path.home() / settings).open("a+") as file:
            file.seek(0)
            text = file.read()
            if line not in text.splitlines():
                file.write(f"{'' if text.endswith(chr(10)) or not text else chr(10)}{line}\n")
    return shell, path


def _current_shell() -> str:
    """Return the name of the shell that started this process, or of the login shell."""
    with suppress(OSError):  # only Linux has the file
        parent = Path(f"/proc/{os.getppid()}/comm").read_text().strip()
        if parent in _SHELLS:
            return parent
    return Path(os.environ.get("SHELL", "")).name
