"""Actions of a plan and their reasons, named as in Terraform's plan JSON."""

from __future__ import annotations

from enum import Enum, StrEnum


class Action(Enum):
    """Action on a resource; the value is the symbol shown in plans."""

    NOOP = " "
    CREATE = "+"
    READ = "<="
    UPDATE = "~"
    REPLACE = "-/+"
    REUSE = "="
    DELETE = "-"
    FORGET = "."

    __hash__ = object.__hash__  # faster than Enum.__hash__, which is written in Python

    @property
    def json_actions(self) -> list[str]:
        """The action in plan JSON, as Terraform writes it."""
        return _JSON_ACTIONS[self]


_JSON_ACTIONS = {
    Action.NOOP: ["no-op"],
    Action.CREATE: ["create"],
    Action.READ: ["read"],
    Action.UPDATE: ["update"],
    Action.REPLACE: ["delete", "create"],
    Action.REUSE: ["create"],
    Action.DELETE: ["delete"],
    Action.FORGET: ["forget"],
}


class ActionReason(StrEnum):
    """Reason for an action: ``action_reason`` in plan JSON. Informative only."""

    CANNOT_UPDATE = "replace_because_cannot_update"
    BY_REQUEST = "replace_by_request"
    FOLLOWED_RUN = "replace_because_followed_run"
    BY_TRIGGERS = "replace_by_triggers"
    NO_CONFIG = "delete_because_no_resource_config"
    RUN_FAILED = "replace_because_run_failed"
    DEPLOY_FAILED = "replace_because_deploy_failed"
    RUN_LOST = "replace_because_run_lost"
    MISSING = "create_because_missing"
    INTERRUPTED = "interrupted"
    SOURCE_MOVED = "update_because_source_moved"
    MIRROR_MOVED = "update_because_mirror_moved"
    CONFIG_CHANGED = "config_changed"
    CODE_CHANGED = "code_changed"
    WEIGHTS_CHANGED = "weights_changed"
    ENDED = "forget_because_ended"
    REMOVED = "forget_because_removed"
    REUSE = "reuse"
