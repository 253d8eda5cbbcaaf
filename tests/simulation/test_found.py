"""Seeds that have found a fault: it is gone."""

from __future__ import annotations

import pytest

from tupelo.lab.simulate import MODELS, simulate, simulate_for

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # coroutines of killed programs


@pytest.mark.parametrize(
    ("model", "seed", "disks"),
    [
        # Copies that had expired when their host was restarted could not be passed on, nor what
        # came after them.
        ("event-heap", 5172, False),
        # `inp` in a space that was made private meanwhile went on for ever, without a pause.
        ("lime", 5618, False),
        # The checker missed an agent that had arrived at a host that crashed, and was let go then.
        ("lime", 5294, False),
        # A broker ended a subscription of its old tree in the new membership, and its neighbour
        # forgot that of the hosts behind it.
        ("lime", 126, True),
        # A take without room for its commit was left as a delivery for ever.
        ("federation", 17, True),
        # A task that was cancelled while the disk was full went on.
        ("federation", 31, True),
        # A subscription over all hosts ended at a host with a full disk.
        ("federation", 20, True),
        # An entry that was on its way to its agent was held for ever.
        ("federation", 20074, True),
        # A host whose last decisions had no room on the disk did not stop.
        ("federation", 3094, True),
        # A client that left a space whose disk had failed kept what it held elsewhere.
        ("federation", 3142, True),
        # An entry that had moved was confirmed to a space whose disk had failed meanwhile.
        ("federation", 3376, True),
        # The checker knew nothing of a host that leaves while it is cut off from one whose entries
        # it has taken: they return there.
        ("federation", 3800, True),
        # A full disk: a token that was on its way stayed away for ever; what a session could not be
        # shown counted as seen; a factory served nobody any more.
        ("event-heap", 8, True),
        ("event-heap", 9, True),
        ("event-heap", 6, True),
        # A token that was given to a host with a full disk was not fetched when there was room.
        ("event-heap", 363, True),
        # Events that a view had skipped because of its horizon came after later ones of a source
        # when it was merged.
        ("event-heap", 5477, False),
        # The checker knew nothing of places that a host had folded before it ended.
        ("event-heap", 5086, False),
        # The end of a feed whose disk has failed raised a KeyError.
        ("event-heap", 20038, True),
        # A directed message that was taken while the disk was full was never deleted.
        ("melon", 13, True),
        # A take over all hosts without room for its commit lost the entries.
        ("melon", 44, True),
        # The checker missed that a full disk delays the record of the last letters that were taken.
        ("melon", 21, True),
        # Directed messages were given out without room for the record of their take, and came again
        # after a restart.
        ("melon", 140, True),
        # A host copied a stream from one that had deleted all of it for lack of room, and asked
        # nobody else.
        ("melon", 204, True),
        # A host that was linked already accepted a second link, whose Hello did not list what had
        # been delivered over the first one since.
        ("melon", 287, True),
        # The checker knew nothing of a host that leaves while it is cut off from one whose messages
        # it has taken: they return there.
        ("melon", 5143, False),
        # Messages were reported as collected before that was on disk, and were there again after a
        # crash.
        ("melon", 5099, False),
        ("melon", 285, True),
        # A take was reported as confirmed when that was in memory only, because the disk was full.
        ("melon", 9024, True),
        # The checker knew nothing of a remover that crashed before it had confirmed.
        ("event-heap", 1144, True),
        # A view was destroyed by a host that was leaving, and nobody else learned of it.
        ("event-heap", 3149, False),
        # A token was dropped in favour of one that was lost, and nobody could replace it.
        ("event-heap", 3537, True),
        # A token was lost with a host in memory that had given it to one with a full disk, and was
        # waited for.
        ("event-heap", 3591, True),
        # A token was dropped in favour of itself: another host knew only that it was replaced.
        ("event-heap", 4171, True),
        # A view ended while an event was put through it: the put failed, and the event was there.
        ("event-heap", 3140, True),
        # The checker wanted events to be read at the host that had removed them, when their source
        # had lost its memory before it was told.
        ("event-heap", 3219, True),
        # The checker wanted messages to be read whose last copies in reach had been deleted.
        ("melon", 20027, False),
    ],
)
def test_a_seed_that_found_a_fault_finds_none(model, seed, disks):
    report = simulate(seed, model, disks=disks)
    assert report.acts > 0
    assert report.faults == ()


def test_all_models_are_simulated_until_the_time_is_over():
    reports = list(simulate_for(0.2, 40, 1, list(MODELS), disks=True))
    assert [(one.model, one.seed) for one in reports[:2]] == [("federation", 40), ("lime", 40)]
    assert all(one.seconds > 1 and one.disks for one in reports)
