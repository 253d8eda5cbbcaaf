"""The laws that a space at a host elsewhere cannot keep, by name, each with the reason."""

from typing import Any

import pytest

CODE = "code is not sent: a Where, or an order that is no rule known everywhere, is refused"
WEAK = "reactions to a space afar run after the step, not in it"
HANDED = "a take from afar is a hand-over: the log of a durable space also tells of the promise"

MODULES = {"test_reactions": WEAK}
KEPT = {
    "test_the_waiters_get_what_a_new_reaction_writes",
    "test_nothing_reacts_to_what_is_called_off",
    "test_what_is_no_function_is_refused",
}
"""Laws of those modules that hold all the same."""

LAWS = {
    "test_everything_that_happens_is_a_change": HANDED,
    "test_positions_count_without_gaps": HANDED,
    "test_a_change_tells_how_long_its_taker_had_waited": HANDED,
    "test_what_lives_is_found_in_later_changes_after_a_trim": HANDED,
    "test_a_log_can_be_compacted_and_goes_on": HANDED,
    "test_a_change_tells_who_what_and_when": "the agent is the client, which the host names",
    "test_a_failed_step_leaves_no_change": WEAK,
    "test_random_is_decided_by_the_generator_that_is_handed_in": CODE,
    "test_key_gives_the_smallest_first": CODE,
    "test_a_key_function_that_raises_takes_nothing": CODE,
    "test_a_template_that_cannot_be_compared_has_an_id_of_its_own": (
        "the host compares templates as they are spelled, which can always be done"
    ),
    "test_a_listener_whose_where_raises_is_told_and_the_writer_is_not": CODE,
    "test_what_a_reaction_removes_is_never_told": WEAK,
    "test_what_a_reaction_writes_is_told": WEAK,
    "test_a_type_matches_its_subclasses_and_exactly_does_not": (
        "a type that is no value's and no dataclass, such as Number, has no name elsewhere"
    ),
    "test_a_part_says_what_one_field_may_be": CODE,
    "test_whole_templates_combine": CODE,
    "test_a_where_that_raises_is_a_bad_template_and_takes_nothing": CODE,
    "test_a_waiter_whose_where_raises_is_told_and_the_writer_is_not": CODE,
    "test_a_waiter_gets_only_what_its_template_matches[template7-no7-yes7]": CODE,
    "test_a_reaction_that_fails_is_told_to_the_writer": WEAK,
    "test_an_order_may_leave_matches_out": CODE,
    "test_one_whose_order_finds_too_little_does_not_hold_up_the_next": CODE,
}


def keep_what_holds(item: Any) -> None:
    """Skip this test if what it asks cannot be had from afar."""
    name = item.originalname
    if name in KEPT:
        return
    _, _, params = item.name.partition("afar-")
    reason = (
        MODULES.get(item.module.__name__.rpartition(".")[2])
        or LAWS.get(name)
        or LAWS.get(f"{name}[{params}")
    )
    if reason is not None:
        pytest.skip(reason)
