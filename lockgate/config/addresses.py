# SPDX-License-Identifier: Apache-2.0
"""AddressRules: which addresses Lockgate may call for a request. The IP address decides, not the host name."""

import ipaddress
import re
from collections.abc import Iterator, Sequence

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MAX_NAME_CHARS = 253

_LABEL = re.compile(r"[a-z0-9_-]{1,63}")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")  # the last part of a name that some resolvers read as an IPv4 address
_METADATA_NETWORKS = tuple(  # services there give cloud credentials to any process of this machine
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
_CONTAINING_IPV4 = tuple(  # IPv6 networks with an IPv4 address in their last 32 bits
    ipaddress.ip_network(network)
    for network in ("::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48")
)
_MAPPED = ipaddress.IPv6Network("::ffff:0:0/96")  # IPv4 addresses in IPv6 spelling
_ISATAP = frozenset({0x00005EFE, 0x02005EFE})


class AddressRules:
    """Which addresses may be called. Without entries: all but link-local and metadata addresses.

    An entry is an address, a network, a host name or `*.example.com`. Host names and large networks never allow a
    metadata address.
    """

    def __init__(self, allow: Sequence[str]) -> None:
        for entry in allow:
            if (fault := check_entry(entry)) is not None:
                raise ValueError(f"`{entry}` {fault}")
        self._is_open = not allow
        self._networks = tuple(network for entry in allow if (network := _read_network(entry)) is not None)
        names = [_normalise(entry) for entry in allow if _read_network(entry) is None]
        self._names = frozenset(name for name in names if not name.startswith("*."))
        self._parents = tuple(name[1:] for name in names if name.startswith("*."))

    def permits(self, host: str, address: str | Address) -> bool:
        """Return whether a connection for this host may go to this address."""
        try:
            target = ipaddress.ip_address(address.partition("%")[0]) if isinstance(address, str) else address
        except ValueError:
            return False
        mapped = target.ipv4_mapped if isinstance(target, ipaddress.IPv6Address) else None
        target = mapped or target
        entries = [network for network in self._networks if target in network]
        if any(one in network for one in _list_targets(target) for network in _METADATA_NETWORKS):
            return any(_opens_metadata(network) for network in entries)
        name = _normalise(host)
        return bool(entries) or self._is_open or name in self._names or name.endswith(self._parents)


def _opens_metadata(network: Network) -> bool:
    """Return whether an entry allows metadata addresses, which larger networks may contain by accident."""
    is_part = any(
        isinstance(network, type(metadata)) and network.subnet_of(metadata)  # type: ignore[arg-type]
        for metadata in _METADATA_NETWORKS
    )
    return is_part or network.num_addresses == 1


def check_entry(text: str) -> str | None:
    """Return the fault of an entry of `allow` as words that follow the entry, or None."""
    if "%" in text:
        return "has a zone; write the address without `%` and what follows it"
    if "://" in text:
        return "is a URL; write only its host name or address"
    try:
        network = _read_network(text)
    except ValueError:
        return "is not a network, or has bits set after its prefix; write it like 10.0.0.0/8"
    if network is not None:
        is_mapped = isinstance(network, ipaddress.IPv6Network) and network.subnet_of(_MAPPED)
        return "is an IPv4 address in IPv6 spelling; write it as IPv4" if is_mapped else None
    name = _normalise(text).removeprefix("*.")
    return None if _is_name(name) else "must be an address, a network, a host name, or `*.` and a host name"


def read_host(host: str) -> Address | None:
    """Return the address that the host of a URL is, or None for a host name. Raise ValueError if it is neither."""
    if "%" in host:
        raise ValueError("the host has a zone or an escape in it")
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        pass
    if not _is_name(_normalise(host)):
        raise ValueError("the host is neither a name nor an address in its usual spelling")
    return None


def _is_name(name: str) -> bool:
    labels = name.split(".")
    is_made_of_labels = len(name) <= MAX_NAME_CHARS and all(_LABEL.fullmatch(label) for label in labels)
    return is_made_of_labels and not _NUMBER.fullmatch(labels[-1])


def _normalise(name: str) -> str:
    return name.lower().removesuffix(".")


def _read_network(entry: str) -> Network | None:
    """Return the network of an entry, or None for a host name. Raise ValueError for a network with a fault."""
    if "/" in entry:
        return ipaddress.ip_network(entry)
    try:
        return ipaddress.ip_network(ipaddress.ip_address(entry))
    except ValueError:
        return None


def _list_targets(address: Address) -> Iterator[Address]:
    """Yield the address, and every IPv4 address to which a translator or tunnel may forward it."""
    yield address
    if isinstance(address, ipaddress.IPv4Address):
        return
    number = int(address)
    if any(address in network for network in _CONTAINING_IPV4) or (number >> 32) & 0xFFFFFFFF in _ISATAP:
        yield ipaddress.IPv4Address(number & 0xFFFFFFFF)
    if address.sixtofour is not None:
        yield address.sixtofour
    if address.teredo is not None:
        yield from address.teredo
