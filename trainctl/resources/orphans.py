"""Machines that a provider reports and that the state doesn't have."""

from __future__ import annotations

from dataclasses import dataclass

from trainctl.ledger.state import State
from trainctl.model.address import Kind
from trainctl.plugin_api.machines import Machine
from trainctl.resources.agents import nodes_of, unprovisioned_nodes


@dataclass(frozen=True, slots=True)
class OrphanedMachine:
    """A machine with its provider's name, and its cost since launch, None if unknown.

    ``of_this_state``: whether an apply with this state created it. ``error``: why it could not be ended.
    """

    provider: str
    machine: Machine
    of_this_state: bool
    cost: float | None = None
    ended: bool = False
    error: str = ""


def is_orphaned(state: State, machine: Machine) -> bool:
    """Whether no node has the machine, and no apply that is running or was interrupted created it.

    The next apply uses or deletes the machines of an interrupted one.
    """
    attempts = (
        intent
        for address in (*state.open_intents, *state.orphaned_intents)
        for intent in state.attempts(address)
    )
    is_attempted = any(machine.key.startswith(f"{intent.key}/") for intent in attempts)
    return machine.key not in _node_keys(state) and not is_attempted


def cost_since_launch(machine: Machine, now: float) -> float | None:
    """Return the cost until now in Unix seconds; None if launch or price is unknown."""
    if machine.launched_at is None or machine.price_per_hour is None:
        return None
    return max(0.0, now - machine.launched_at) / 3600 * machine.price_per_hour


def _node_keys(state: State) -> set[str]:
    clusters = [item for item in state.resources.values() if item.address.kind is Kind.CLUSTER]
    return {
        node.key
        for cluster in clusters
        for node in (*nodes_of(cluster), *unprovisioned_nodes(cluster))
    }
