"""Sealed messages: only the addressee opens them, as they were, where they belong."""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from tupelo.errors import BadArgument, BadSeal, NotForUs
from tupelo.federation.identity.keys import Identity, key_text
from tupelo.federation.identity.sealing import OVERHEAD, seal, unseal

ANN, BOB, EVE = (Identity(Ed25519PrivateKey.from_private_bytes(bytes([i] * 32))) for i in (1, 2, 3))
HERE = ("letters", 7)


@settings(max_examples=50, deadline=None)
@given(plain=st.binary(max_size=300), context=st.tuples(st.text(max_size=9), st.integers(0, 2**63)))
def test_the_addressee_learns_who_sent_what(plain, context):
    sealed = seal(ANN, BOB.key, plain, context)
    assert len(sealed) == len(plain) + OVERHEAD
    assert unseal(BOB, sealed, context) == (ANN.key, plain)


@settings(max_examples=30, deadline=None)
@given(seed=st.binary(min_size=32, max_size=32))
def test_any_identity_can_be_written_to_by_its_key_alone(seed):
    anybody = Identity(Ed25519PrivateKey.from_private_bytes(seed))
    assert unseal(anybody, seal(ANN, anybody.key, b"hello", HERE), HERE) == (ANN.key, b"hello")


def test_one_can_write_to_oneself():
    assert unseal(ANN, seal(ANN, ANN.key, b"note", HERE), HERE) == (ANN.key, b"note")


def test_a_message_for_another_says_for_whom():
    with pytest.raises(NotForUs) as caught:
        unseal(EVE, seal(ANN, BOB.key, b"secret", HERE), HERE)
    assert caught.value.addressee == BOB.key


def test_a_extension_sees_neither_text_nor_sender():
    sealed = seal(ANN, BOB.key, b"meet me at noon, alone", HERE)
    assert b"noon" not in sealed
    assert bytes.fromhex(ANN.key.removeprefix("ed25519:")) not in sealed


def test_no_two_seals_are_alike():
    assert seal(ANN, BOB.key, b"x", HERE) != seal(ANN, BOB.key, b"x", HERE)


def test_every_bit_is_guarded():
    sealed = seal(ANN, BOB.key, b"ten", HERE)
    for place in range(len(sealed)):
        altered = bytearray(sealed)
        altered[place] ^= 1 << place % 8
        with pytest.raises((BadSeal, NotForUs)):
            unseal(BOB, bytes(altered), HERE)
    for cut in (0, 1, 65, OVERHEAD - 1, len(sealed) - 1):
        with pytest.raises(BadSeal):
            unseal(BOB, sealed[:cut], HERE)
    with pytest.raises(BadSeal):
        unseal(BOB, sealed + b"!", HERE)


def test_a_extension_cannot_address_it_to_another():
    sealed = bytearray(seal(ANN, BOB.key, b"secret", HERE))
    sealed[1:33] = bytes.fromhex(EVE.key.removeprefix("ed25519:"))
    with pytest.raises(BadSeal):
        unseal(EVE, bytes(sealed), HERE)


@pytest.mark.parametrize(
    "elsewhere", [("letters", 8), ("parcels", 7), ("letters",), ("letters", "7"), ("letters", 7, 0)]
)
def test_it_cannot_be_passed_off_as_another_message(elsewhere):
    with pytest.raises(BadSeal):
        unseal(BOB, seal(ANN, BOB.key, b"pay 10", HERE), elsewhere)


def test_the_addressee_cannot_pass_it_on_as_if_the_sender_had(monkeypatch):
    """Bob seals what Ann sealed for him for Eve, with Ann's signature on it."""
    import tupelo.federation.identity.sealing as sealing

    signed: list[bytes] = []
    true_sign = Identity.sign

    def sign(identity: Identity, data: bytes) -> bytes:
        signed.append(data)
        return true_sign(identity, data)

    monkeypatch.setattr(Identity, "sign", sign)
    seal(ANN, BOB.key, b"I love you", HERE)
    signature = true_sign(ANN, signed[0])
    monkeypatch.setattr(Identity, "sign", lambda identity, data: signature)
    forged = sealing.seal(ANN, EVE.key, b"I love you", HERE)
    with pytest.raises(BadSeal):
        unseal(EVE, forged, HERE)


def test_nobody_seals_in_the_name_of_another(monkeypatch):
    true_sign = Identity.sign
    monkeypatch.setattr(Identity, "sign", lambda identity, data: true_sign(EVE, data))
    with pytest.raises(BadSeal):
        unseal(BOB, seal(ANN, BOB.key, b"it is me, Ann", HERE), HERE)


SMALL = [  # points of the curve with an order of 1, 2, 4 and 8
    "0100000000000000000000000000000000000000000000000000000000000000",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0000000000000000000000000000000000000000000000000000000000000080",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
]
NO_POINTS = [
    "02" + "00" * 31,
    "ff" * 32,
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
]


@pytest.mark.parametrize("raw", SMALL + NO_POINTS)
def test_nothing_is_sealed_for_a_key_that_nobody_can_have(raw):
    with pytest.raises(BadArgument, match="to"):
        seal(ANN, key_text(bytes.fromhex(raw)), b"?", HERE)


@pytest.mark.parametrize("raw", SMALL)
def test_a_key_that_anybody_could_sign_for_is_no_sender(raw, monkeypatch):
    """Where the key is a point of small order, there are signatures that fit many messages."""
    nobody = Identity.new()
    nobody.key = key_text(bytes.fromhex(raw))
    monkeypatch.setattr(
        "tupelo.federation.identity.sealing.verify", lambda key, data, signature: True
    )
    with pytest.raises(BadSeal):
        unseal(BOB, seal(nobody, BOB.key, b"trust me", HERE), HERE)


@pytest.mark.parametrize("to", ["bob", "", "ed25519:12", None])
def test_an_address_is_an_identity(to):
    with pytest.raises(BadArgument, match="to"):
        seal(ANN, to, b"", HERE)


@pytest.mark.parametrize("context", [(1.5,), (None,), (True,), (2**70,), ("\ud800",)])
def test_a_context_is_made_of_texts_and_numbers(context):
    with pytest.raises(BadArgument, match="context"):
        seal(ANN, BOB.key, b"", context)


def test_a_message_key_on_which_all_agree_is_refused():
    sealed = bytearray(seal(ANN, BOB.key, b"x", HERE))
    sealed[33:65] = bytes(32)
    with pytest.raises(BadSeal):
        unseal(BOB, bytes(sealed), HERE)
