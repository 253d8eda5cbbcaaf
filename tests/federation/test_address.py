"""Addresses of hosts and URLs of spaces."""

import ipaddress
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tupelo.errors import BadArgument
from tupelo.federation.links.address import DEFAULT_PORT, Address, is_loopback, parse_url


@pytest.mark.parametrize(
    ("given_address", "host", "port"),
    [
        ("kitchen:8000", "kitchen", 8000),
        ("Kitchen.Local:8000", "kitchen.local", 8000),
        ("kitchen", "kitchen", DEFAULT_PORT),
        ("192.0.2.1:1", "192.0.2.1", 1),
        ("[::1]:65535", "::1", 65535),
        ("[2001:DB8:0::1]", "2001:db8::1", DEFAULT_PORT),
        ("[fe80::1%eth0]:1", "fe80::1%eth0", 1),
        ("my_host-1.example.", "my_host-1.example.", DEFAULT_PORT),
        (":8000", "127.0.0.1", 8000),
        (":0", "127.0.0.1", 0),
        (8000, "127.0.0.1", 8000),
        (0, "127.0.0.1", 0),
    ],
)
def test_an_address_is_a_host_and_a_port(given_address, host, port):
    assert Address.parse(given_address) == Address(host, port)


@pytest.mark.parametrize(
    ("given_address", "why"),
    [
        ("", ""),
        ("kitchen:", "the port is a number"),
        ("kitchen:x", "the port is a number"),
        ("kitchen:-1", "the port is a number"),
        ("kitchen:65536", "the port is a number"),
        ("kitchen:" + "9" * 5000, "the port is a number"),
        ("kitchen:٣", "the port is a number"),
        ("::1", "an IPv6 address stands in brackets"),
        ("::1:7700", "an IPv6 address stands in brackets"),
        ("[::1", "the bracket is not closed"),
        ("[::1]7700", "a port stands behind a colon"),
        ("[kitchen]:7700", ""),
        ("my kitchen:1", "this is no name of a host"),
        ("küche:1", "this is no name of a host"),
        ("a..b:1", "this is no name of a host"),
        ("-a:1", "this is no name of a host"),
        ("x" * 64, "this is no name of a host"),
        (".".join(["x" * 60] * 5), "this is no name of a host"),
        (-1, ""),
        (65536, ""),
        (True, ""),
        (None, ""),
        (1.5, ""),
    ],
)
def test_what_is_no_address_is_refused_by_name(given_address, why):
    with pytest.raises(BadArgument, match=r"^listen= must be an address") as refused:
        Address.parse(given_address, "listen")
    assert why in str(refused.value)


@pytest.mark.parametrize("text", ["kitchen:8000", "192.0.2.1:1", "[::1]:7700"])
def test_an_address_is_shown_as_it_is_written(text):
    assert str(Address.parse(text)) == text


@pytest.mark.parametrize(
    ("url", "address", "space"),
    [
        ("tupelo://127.0.0.1:7700/jobs", Address("127.0.0.1", 7700), "jobs"),
        ("TUPELO://Kitchen/Jobs", Address("kitchen", DEFAULT_PORT), "Jobs"),
        ("tupelo://kitchen:1", Address("kitchen", 1), None),
        ("tupelo://kitchen:1/", Address("kitchen", 1), None),
        ("tupelo://[::1]:1/jobs", Address("::1", 1), "jobs"),
        ("tupelo://[fe80::1%25eth0]/jobs", Address("fe80::1%eth0", DEFAULT_PORT), "jobs"),
        ("tupelo://kitchen/a%2Fb%20c%3F%23%25", Address("kitchen", DEFAULT_PORT), "a/b c?#%"),
        ("tupelo://kitchen/k%C3%BCche", Address("kitchen", DEFAULT_PORT), "küche"),
        ("tupelo://kitchen/küche", Address("kitchen", DEFAULT_PORT), "küche"),
        ("tupelo://kitchen/a@b:c", Address("kitchen", DEFAULT_PORT), "a@b:c"),
    ],
)
def test_a_url_names_a_host_and_a_space(url, address, space):
    assert parse_url(url) == (address, space)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("", ""),
        ("jobs", ""),
        ("http://kitchen/jobs", ""),
        ("tupelo:/kitchen/jobs", ""),
        ("tupelo://", "there is no host"),
        ("tupelo:///jobs", "there is no host"),
        ("tupelo://:7700/jobs", "there is no host"),
        ("tupelo://kitchen:0/jobs", "nobody listens at port 0"),
        ("tupelo://kitchen:x/jobs", "the port is a number"),
        ("tupelo://::1/jobs", "an IPv6 address stands in brackets"),
        ("tupelo://kitchen/jobs/", "/ is spelled %2F"),
        ("tupelo://kitchen/jobs?x=1", "? is spelled %3F"),
        ("tupelo://kitchen/jobs#1", "# is spelled %23"),
        ("tupelo://kitchen/100%", "a % is spelled %25"),
        ("tupelo://kitchen/%FF", "no UTF-8"),
        ("tupelo://kitchen/\ud800", "no UTF-8"),
        ("tupelo://kitchen?x", "this is no name of a host"),
        (None, ""),
        (7700, ""),
        (b"tupelo://kitchen", ""),
    ],
)
def test_what_is_no_url_is_refused_by_name(url, why):
    with pytest.raises(BadArgument, match=r"^url= must be of the form tupelo://") as refused:
        parse_url(url)
    assert why in str(refused.value)


def test_a_password_in_a_url_is_refused_and_not_shown():
    with pytest.raises(BadArgument, match="without a user or password") as refused:
        parse_url("tupelo://alice:sesame@kitchen/jobs")
    assert "sesame" not in str(refused.value)


HOSTS = (
    st.from_regex(r"[a-z0-9]{1,20}(\.[a-z0-9]{1,20}){0,3}", fullmatch=True)
    | st.ip_addresses(v=4).map(str)
    | st.ip_addresses(v=6).map(str)
)


@given(HOSTS, st.integers(1, 65535), st.text(st.characters(codec="utf-8")))
def test_every_space_of_every_host_has_a_url(host, port, space):
    address = Address(host, port)
    assert Address.parse(str(address)) == address
    assert parse_url(f"tupelo://{address}/{quote(space, safe='')}") == (address, space or None)


@given(st.text() | st.text().map("tupelo://".__add__) | st.text().map("tupelo://[".__add__))
def test_any_text_is_a_url_or_refused(url):
    try:
        address, space = parse_url(url)
    except BadArgument as error:
        assert error.argument == "url"
    else:
        assert address.host
        assert 0 < address.port <= 65535
        assert space is None or space


@given(st.text() | st.integers())
def test_anything_is_an_address_or_refused(given_address):
    try:
        address = Address.parse(given_address)
    except BadArgument as error:
        assert error.argument == "address"
    else:
        assert Address.parse(str(address)) == address


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.255.255.254",
        "::1",
        "0:0:0:0:0:0:0:1",
        "::ffff:127.0.0.1",
        "localhost",
        "LocalHost",
        "localhost.",
    ],
)
def test_these_can_be_reached_from_this_machine_only(host):
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    [
        "",
        "0.0.0.0",
        "::",
        "192.0.2.1",
        "::2",
        "::ffff:192.0.2.1",
        "kitchen",
        "128.0.0.1",
        "localhost.example",
        "127.0.0.1.example",
        "fe80::1%lo",
    ],
)
def test_these_can_be_reached_from_elsewhere(host):
    assert not is_loopback(host)


@given(st.ip_addresses(v=4))
def test_the_loopback_network_is_127(ip):
    assert is_loopback(str(ip)) == (ip in ipaddress.ip_network("127.0.0.0/8"))
