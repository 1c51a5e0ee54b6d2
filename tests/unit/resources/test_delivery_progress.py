"""How far a delivery is, as whoever watches is told."""

from __future__ import annotations

from collections.abc import Mapping

from trainctl.apply.step import ApplyStep
from trainctl.base.listing import ListedFile, Listing
from trainctl.model.action import Action
from trainctl.model.address import Address
from trainctl.model.delivery import TransferForecast
from trainctl.resources.delivery import DeliveryProgress
from trainctl.views.terminal.progress import RateMeter

GB = 10**9
SIZES = {"weights.new": 10 * GB, "weights.old": 90 * GB}


class Watched:
    """A delivery to one node, and what is told of it."""

    def __init__(self, forecasts: Mapping[tuple[int, str], TransferForecast] | None = None) -> None:
        self.told: list[tuple[str, int, int]] = []
        step = ApplyStep(
            Address.parse("job.sft"), Action.CREATE, "run-1", {}, None, (), None, lambda address: None,
            lambda *told: self.told.append(told), lambda address: 0.0, forecasts=forecasts or {},
        )  # fmt: skip
        listings = {
            address: Listing((ListedFile("model", size, "0" * 64, ()),))
            for address, size in SIZES.items()
        }
        self.progress = DeliveryProgress(step, listings, 1)

    def heard(self, address: str, here: int, came: int) -> None:
        """The node reports: so much had it before, and so much has come."""
        event = {"done": here + came, "received": came, "total": SIZES[address], "files": 1}
        self.progress.of(0, address)(event)


def forecast(told: list[tuple[str, int, int]]) -> str:
    """What is shown after these, one a second."""
    meter = RateMeter()
    for second, (_, done, total) in enumerate(told):
        meter.update(done, total, float(second))
    return meter.text(float(len(told) - 1))


def test_what_the_plan_found_on_the_node_is_not_left_to_come() -> None:
    """Before the node says anything of it, as its turn comes later."""
    watched = Watched({(0, "weights.new"): TransferForecast(None, 10 * GB), (0, "weights.old"): TransferForecast(None, 0)})  # fmt: skip

    for came in (0, GB, 2 * GB):
        watched.heard("weights.new", 0, came)

    assert forecast(watched.told) == "2.0 GB of 10.0 GB, 1.0 GB/s, 8.0 s left"


def test_what_the_node_has_is_not_left_to_come_and_no_speed() -> None:
    """Where the plan didn't know: from its first report on, which is before anything came, also of what is found later."""
    watched = Watched({(0, "weights.new"): TransferForecast(None, 10 * GB)})
    for came in (9 * GB, 10 * GB):
        watched.heard("weights.new", 0, came)
    watched.progress.finish(0, "weights.new")

    watched.heard("weights.old", 0, 0)
    watched.heard("weights.old", 80 * GB, 0)
    watched.heard("weights.old", 80 * GB, GB)

    assert forecast(watched.told[-3:]) == "11.0 GB of 20.0 GB, 500 MB/s, 18 s left"


def test_a_node_that_has_it_all_tells_nothing_of_it() -> None:
    """Its answer says so: then nothing of it is left, whatever the plan said."""
    watched = Watched()

    watched.progress.finish(0, "weights.old")
    watched.heard("weights.new", 0, GB)
    watched.progress.finish(0, "weights.new")

    assert watched.told[-2:] == [
        ("delivering weights.new", GB, 10 * GB),
        ("delivering weights.new", GB, GB),
    ]


def test_a_delivery_that_ended_as_told_is_told_once() -> None:
    """The last report is the end."""
    watched = Watched()

    watched.heard("weights.new", 0, 10 * GB)
    told = len(watched.told)
    watched.progress.finish(0, "weights.new")

    assert len(watched.told) == told
