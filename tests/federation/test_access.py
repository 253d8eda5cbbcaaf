"""Who may do what in a space."""

import logging

import pytest

from tupelo.errors import BadArgument, NotAllowed, WrongPassword
from tupelo.federation.identity.access import ANYONE, LOCAL, OPERATIONS, Access

ALICE, BOB = ("ed25519:" + digit * 64 for digit in "ab")
ELSEWHERE = ""  # a program on another machine that shows no identity


def allowed(access: Access, who: str | None, *, shown: bool = False) -> set[str]:
    return {operation for operation in OPERATIONS if passes(access, operation, who, shown)}


def passes(access: Access, operation: str, who: str | None, shown: bool) -> bool:
    try:
        access.check(operation, "jobs", who, shown)
    except NotAllowed:
        return False
    return True


def test_by_default_everyone_may_use_a_space_and_only_its_own_machine_may_administer_it():
    use = {"read", "write", "take", "subscribe"}
    assert allowed(Access(), ALICE) == use
    assert allowed(Access(), ELSEWHERE) == use
    assert allowed(Access(), None) == {*use, "administer"}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_rule_is_about_one_operation(operation):
    access = Access(**{name: [BOB] for name in OPERATIONS} | {operation: [ALICE]})
    assert allowed(access, ALICE) == {operation}
    assert allowed(access, BOB) == {*OPERATIONS} - {operation}


def test_a_rule_by_identity_lets_nobody_in_who_shows_none():
    access = Access(read=ANYONE, write=[ALICE], take=[], administer=[ALICE])
    assert allowed(access, ALICE) == {"read", "write", "subscribe", "administer"}
    assert allowed(access, None) == {"read", "subscribe"}
    assert allowed(access, ELSEWHERE) == {"read", "subscribe"}


def test_programs_of_the_same_machine_can_be_named_among_identities():
    access = Access(write=[ALICE, LOCAL], take=LOCAL, administer=(key for key in [ALICE, LOCAL]))
    assert allowed(access, None) == {*OPERATIONS}
    assert allowed(access, ALICE) == {*OPERATIONS} - {"take"}
    assert allowed(access, ELSEWHERE) == {"read", "subscribe"}


@pytest.mark.parametrize(
    ("who", "name"),
    [
        (BOB, BOB),
        (None, "a program on this machine without an identity"),
        (ELSEWHERE, "a program without an identity"),
    ],
)
def test_a_refusal_is_clear_to_the_refused_and_logged(caplog, who, name):
    with (
        caplog.at_level(logging.INFO, "tupelo"),
        pytest.raises(NotAllowed) as refused,
    ):
        Access(take=[ALICE]).check("take", "jobs", who, False)
    assert str(refused.value) == f"{name} is not allowed to take in the space 'jobs'"
    assert (refused.value.operation, refused.value.space) == ("take", "jobs")
    assert [record.getMessage() for record in caplog.records] == [f"refused: {refused.value}"]


def test_nothing_is_logged_of_what_is_allowed(caplog):
    with caplog.at_level(logging.DEBUG, "tupelo"):
        Access().check("take", "jobs", BOB, False)
    assert not caplog.records


def test_a_protected_space_wants_its_password_before_anything(caplog):
    access = Access(password="sesame", administer=[ALICE])
    assert access.protected
    for who in (ALICE, None, ELSEWHERE):
        for operation in OPERATIONS:
            with (
                caplog.at_level(logging.INFO, "tupelo"),
                pytest.raises(WrongPassword, match="'jobs' is protected"),
            ):
                access.check(operation, "jobs", who, False)
            assert "did not show the password of the space 'jobs'" in caplog.text
            caplog.clear()
    assert allowed(access, ALICE, shown=True) == {*OPERATIONS}
    assert allowed(access, BOB, shown=True) == {*OPERATIONS} - {"administer"}


def test_a_password_is_the_same_text_and_no_other():
    access = Access(password="sésame \ud800")
    assert access.matches_password("sésame \ud800")
    for other in ("", "sesame", "sésame \ud801", "sésame \ud800 ", "x" * 100_000, None, b"x", 3):
        assert not access.matches_password(other)  # type: ignore[arg-type]


def test_every_password_will_do_where_there_is_none():
    assert not Access().protected
    assert Access().matches_password("anything")


def test_the_password_is_not_kept():
    one, two = Access(password="sesame"), Access(password="sesame")
    kept = {name: value for name, value in vars(one).items() if isinstance(value, bytes | str)}
    assert "sesame" not in repr(vars(one))
    assert kept
    assert all(value != getattr(two, name) for name, value in kept.items())


@pytest.mark.parametrize("password", ["", 3, b"sesame", ["secret"]])
def test_what_is_no_password_is_refused_and_not_shown(password):
    with pytest.raises(BadArgument, match=r"^password=") as refused:
        Access(password=password)
    assert "sesame" not in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("rule", [ALICE, "everyone", None, 3, ["bob"], [ALICE, None], [ANYONE]])
def test_what_is_no_rule_is_refused_by_name(operation, rule):
    with pytest.raises(BadArgument, match=rf"^{operation}="):
        Access(**{operation: rule})


@pytest.mark.parametrize("operation", ["", "delete", "READ", None])
def test_what_is_no_operation_is_refused(operation):
    with pytest.raises(BadArgument, match=r"^operation= must be one of read, write"):
        Access().check(operation, "jobs", ALICE, False)
