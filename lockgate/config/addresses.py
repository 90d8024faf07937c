# SPDX-License-Identifier: Apache-2.0
"""AddressRules: which addresses requests may let us call. The address of the connection decides, not its name."""

import ipaddress
import re
from collections.abc import Iterator, Sequence

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MAX_NAME_CHARS = 253

_LABEL = re.compile(r"[a-z0-9_-]{1,63}")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")  # the last part of a name that some resolvers read as an IPv4 address
_GUARDED = tuple(  # services there give credentials to any process of this machine
    ipaddress.ip_network(network)
    for network in (
        "169.254.0.0/16",  # link-local; the metadata address of most clouds is 169.254.169.254
        "fe80::/10",
        "100.100.100.200/32",  # Alibaba Cloud
        "168.63.129.16/32",  # Azure
        "192.0.0.192/32",  # Oracle Cloud
        "fd00:ec2::/32",  # Amazon
        "fd20:ce::254/128",  # Google Cloud
        "fd00:c1::a9fe:a9fe/128",  # Oracle Cloud
        "fd00:42::42/128",  # Scaleway
    )
)
_HOLDING_IPV4 = tuple(  # in their last 32 bits
    ipaddress.ip_network(network)
    for network in ("::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48")
)
_MAPPED = ipaddress.IPv6Network("::ffff:0:0/96")  # IPv4 addresses in IPv6 spelling
_ISATAP = frozenset({0x00005EFE, 0x02005EFE})


class AddressRules:
    """Which addresses may be called. Without entries: all but the guarded ones.

    An entry is an address, a network, a host name or `*.example.com`. Names and large networks open no guarded address.
    """

    def __init__(self, allow: Sequence[str]) -> None:
        for entry in allow:
            if (fault := check_entry(entry)) is not None:
                raise ValueError(f"`{entry}` {fault}")
        self._is_open = not allow
        self._networks = tuple(network for entry in allow if (network := _read_network(entry)) is not None)
        names = [_plain(entry) for entry in allow if _read_network(entry) is None]
        self._names = frozenset(name for name in names if not name.startswith("*."))
        self._parents = tuple(name[1:] for name in names if name.startswith("*."))

    def permits(self, host: str, address: str | Address) -> bool:
        """Whether a connection for this host may go to this address."""
        try:
            own = ipaddress.ip_address(address.partition("%")[0]) if isinstance(address, str) else address
        except ValueError:
            return False
        mapped = own.ipv4_mapped if isinstance(own, ipaddress.IPv6Address) else None
        own = mapped or own
        entries = [network for network in self._networks if own in network]
        if any(face in network for face in _faces(own) for network in _GUARDED):
            return any(_is_guarded(network) for network in entries)
        name = _plain(host)
        return bool(entries) or self._is_open or name in self._names or name.endswith(self._parents)


def _is_guarded(network: Network) -> bool:
    """Whether a network is a guarded one or part of it, or a single address: a large one may hold some unawares."""
    is_part = any(
        isinstance(network, type(guarded)) and network.subnet_of(guarded)  # type: ignore[arg-type]
        for guarded in _GUARDED
    )
    return is_part or network.num_addresses == 1


def check_entry(text: str) -> str | None:
    """What is wrong with an entry of the list, if anything; words that follow the entry itself."""
    if "%" in text:
        return "has a zone, which is no part of an address here"
    if "://" in text:
        return "is an url; a host name, an address or a network is enough"
    try:
        network = _read_network(text)
    except ValueError:
        return "is no network, or has bits set behind its prefix"
    if network is not None:
        is_mapped = isinstance(network, ipaddress.IPv6Network) and network.subnet_of(_MAPPED)
        return "is an IPv4 address in IPv6 spelling; write it as IPv4" if is_mapped else None
    name = _plain(text).removeprefix("*.")
    return None if _is_name(name) else "is no address, no network, no host name and no `*.` before a host name"


def read_host(host: str) -> Address | None:
    """The address that a host of an URL is, or None for a name; raises ValueError for what is neither."""
    if "%" in host:
        raise ValueError("the host has a zone or an escape in it")
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        pass
    if not _is_name(_plain(host)):
        raise ValueError("the host is neither a name nor an address in its usual spelling")
    return None


def _is_name(name: str) -> bool:
    labels = name.split(".")
    is_made_of_labels = len(name) <= MAX_NAME_CHARS and all(_LABEL.fullmatch(label) for label in labels)
    return is_made_of_labels and not _NUMBER.fullmatch(labels[-1])


def _plain(name: str) -> str:
    return name.lower().removesuffix(".")


def _read_network(entry: str) -> Network | None:
    """The network of an entry; None for a name. Raises ValueError for a network that is none."""
    if "/" in entry:
        return ipaddress.ip_network(entry)
    try:
        return ipaddress.ip_network(ipaddress.ip_address(entry))
    except ValueError:
        return None


def _faces(address: Address) -> Iterator[Address]:
    """The address, and every IPv4 address to which a translator or tunnel on the way may take it."""
    yield address
    if isinstance(address, ipaddress.IPv4Address):
        return
    number = int(address)
    if any(address in network for network in _HOLDING_IPV4) or (number >> 32) & 0xFFFFFFFF in _ISATAP:
        yield ipaddress.IPv4Address(number & 0xFFFFFFFF)
    if address.sixtofour is not None:
        yield address.sixtofour
    if address.teredo is not None:
        yield from address.teredo
