"""Tell public addresses from private ones (a machine, a network, a cloud's own services), which requests must avoid."""

import ipaddress

_NAT64 = ipaddress.ip_network("64:ff9b::/96")  # RFC 6052: the last four bytes are an IPv4 address


def is_public(address: str) -> bool:
    """Return whether an IP address is on the public Internet. Raises ValueError if it is not an IP address."""
    found = ipaddress.ip_address(address)
    if isinstance(found, ipaddress.IPv6Address):
        last = ipaddress.IPv4Address(found.packed[-4:]) if found in _NAT64 else None
        if (inner := found.ipv4_mapped or found.sixtofour or last) is not None:
            return is_public(str(inner))
    return found.is_global and not found.is_multicast
