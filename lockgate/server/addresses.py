# SPDX-License-Identifier: Apache-2.0
"""Hosts and ports in words: how an address is written, whom it reaches, and why it cannot be had."""

import os
from ipaddress import ip_address


def join_address(host: str, port: int) -> str:
    """Host and port as one would type them."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the host."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def describe_fault(error: OSError) -> str:
    """What the system says against an address."""
    number = error.errno or 0
    words = os.strerror(number) if number > 0 else "the host cannot be resolved"
    return f"{words} (os error {number})"
