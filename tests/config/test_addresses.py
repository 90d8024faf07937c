# SPDX-License-Identifier: Apache-2.0
"""Which addresses may be called (A-27): by the address itself, however it is written and whatever name led there."""

from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.config.addresses import AddressRules, check_entry, read_host

OPEN = AddressRules([])
METADATA = "169.254.169.254"
GUARDED = (
    METADATA, "169.254.0.1", "169.254.170.2", "fe80::1", "fe80::1%eth0", "fe80::a9fe:a9fe", "febf::1",
    "fd00:ec2::254", "fd00:ec2::23", "100.100.100.200", "168.63.129.16", "192.0.0.192", "fd20:ce::254",
    "fd00:c1::a9fe:a9fe", "fd00:42::42",
)  # fmt: skip


@pytest.mark.parametrize("address", GUARDED)
def test_link_local_and_metadata_addresses_are_refused_without_any_list(address: str) -> None:
    assert not OPEN.permits("example.com", address)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "10.1.2.3", "8.8.8.8", "2001:db8::1", "fd00::1", "fec0::1"])
def test_an_empty_list_permits_any_other_address(address: str) -> None:
    assert OPEN.permits("example.com", address)


@pytest.mark.parametrize(
    "address",
    [
        "::ffff:169.254.169.254",
        "::ffff:a9fe:a9fe",
        "::a9fe:a9fe",
        "::ffff:0:a9fe:a9fe",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::a9fe:a9fe",
        "2002:a9fe:a9fe::1",
        "2001:db8::5efe:a9fe:a9fe",
        "2001:db8::200:5efe:a9fe:a9fe",
        "2001:0:a9fe:a9fe::1",
        "2001:0:102:304:0:0:5601:5601",
    ],
)
def test_an_ipv4_address_inside_of_an_ipv6_one_is_seen(address: str) -> None:
    assert not OPEN.permits("example.com", address)


def test_what_is_no_address_is_refused() -> None:
    assert not OPEN.permits("example.com", "not-an-address")
    assert not OPEN.permits("example.com", "")


@pytest.mark.parametrize("entry", [METADATA, "169.254.0.0/16", "169.254.169.254/32"])
def test_an_address_or_network_in_the_list_opens_a_guarded_address(entry: str) -> None:
    rules = AddressRules([entry])
    assert rules.permits(METADATA, METADATA)
    assert rules.permits(METADATA, f"::ffff:{METADATA}")
    assert not rules.permits(METADATA, "64:ff9b::a9fe:a9fe")
    assert not rules.permits("100.100.100.200", "100.100.100.200")


@pytest.mark.parametrize(
    ("entry", "guarded", "other"),
    [
        ("0.0.0.0/0", METADATA, "10.0.0.1"),
        ("100.64.0.0/10", "100.100.100.200", "100.100.100.201"),
        ("fd00::/8", "fd00:ec2::254", "fd00::1"),
        ("::/0", "64:ff9b::a9fe:a9fe", "64:ff9b::a00:1"),
    ],
)
def test_a_network_that_only_happens_to_hold_a_guarded_address_does_not_open_it(
    entry: str, guarded: str, other: str
) -> None:
    rules = AddressRules([entry])
    assert not rules.permits(guarded, guarded)
    assert rules.permits(other, other)


def test_a_name_in_the_list_opens_no_guarded_address() -> None:
    rules = AddressRules(["metadata.example", "*.example"])
    assert rules.permits("metadata.example", "10.0.0.1")
    assert not rules.permits("metadata.example", METADATA)
    assert not rules.permits("other.example", "fe80::1")


def test_a_list_permits_only_who_is_listed() -> None:
    rules = AddressRules(["Space.Example.com", "*.spaces.example", "10.0.0.0/8", "2001:db8::/32", "192.0.2.7"])
    assert rules.permits("space.example.COM", "203.0.113.1")
    assert rules.permits("space.example.com.", "203.0.113.1")
    assert rules.permits("a.b.spaces.example", "203.0.113.1")
    assert rules.permits("anything", "10.9.8.7")
    assert rules.permits("anything", "::ffff:10.9.8.7")
    assert rules.permits("anything", "2001:db8:ffff::1")
    assert rules.permits("anything", "192.0.2.7")
    assert not rules.permits("spaces.example", "203.0.113.1")
    assert not rules.permits("evilspaces.example", "203.0.113.1")
    assert not rules.permits("space.example.com.evil", "203.0.113.1")
    assert not rules.permits("x.space.example.com", "203.0.113.1")
    assert not rules.permits("anything", "192.0.2.8")
    assert not rules.permits("anything", "127.0.0.1")
    assert not rules.permits("64:ff9b::a00:1", "64:ff9b::a00:1")  # its last bits are in a listed network, it is not


@pytest.mark.parametrize(
    "entry",
    ["", "*", "*.", "*.*.a", "a b", "a:80", "http://a", "1.2.3", "0x7f.1", "2130706433", "1.2.3.4.", "10.0.0.1/8",
     "10.0.0.0/33", "a/b", "[::1]", "é.de", "fe80::1%eth0", "::ffff:10.0.0.1", "::ffff:a00:0/104", "a..b", "a" * 254],
)  # fmt: skip
def test_a_bad_entry_is_told_and_refused(entry: str) -> None:
    assert check_entry(entry)
    with pytest.raises(ValueError, match="`"):
        AddressRules([entry])


@pytest.mark.parametrize("entry", ["a", "a.b", "A.B.", "*.a.b", "x_y-z.example", "::1", "1.2.3.4", "0.0.0.0/0", "::/0"])
def test_a_good_entry_is_taken(entry: str) -> None:
    assert check_entry(entry) is None
    AddressRules([entry])


@pytest.mark.parametrize(
    "host",
    ["2130706433", "017700000001", "0x7f000001", "0x7f.1", "127.1", "127.0.0.01", "127.0.0.1.", "1.2.3.4.5",
     "256.1.1.1", "::1%eth0", "fe80::1%25eth0", "%31.1.1.1", "a b", "a..b", ".", "", "::zz", "a" * 64, "1.1.1.1%00.x"],
)  # fmt: skip
def test_a_host_in_an_unusual_spelling_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match="the host"):
        read_host(host)


def test_a_host_is_a_name_or_an_address() -> None:
    assert read_host("Example.com.") is None
    assert read_host("xn--mnchen-3ya.de") is None
    assert read_host("10.1.2.3") == IPv4Address("10.1.2.3")
    assert read_host("::1") == IPv6Address("::1")


@given(st.ip_addresses(v=4))
def test_no_ipv6_form_of_an_address_gets_further_than_the_address(address: IPv4Address) -> None:
    number = int(address)
    forms = [number, 0xFFFF << 32 | number, 0x64FF9B << 96 | number, 0x2002 << 112 | number << 80]
    if not OPEN.permits("h", str(address)):
        assert not any(OPEN.permits("h", str(IPv6Address(form))) for form in forms)


@given(st.text(max_size=20))
def test_whatever_an_entry_holds_it_is_either_told_or_taken(entry: str) -> None:
    if check_entry(entry) is None:
        AddressRules([entry])
