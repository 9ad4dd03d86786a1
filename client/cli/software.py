"""Versions of this program and of the packages it is built on, read without importing any."""

from importlib import metadata

PACKAGES = ("libp2p", "torch", "trio", "msgspec", "pynacl", "safetensors", "psutil", "textual")
"""Packages whose versions matter in a report."""


def version_words() -> str:
    """Return the versions of this program and of the protocol, which members of a swarm share."""
    from client.train.messaging.handshake import PROTOCOL

    version = package_version("volunteer") or "unknown (not installed)"
    return f"volunteer {version}, protocol {PROTOCOL}"


def package_version(name: str) -> str | None:
    """Return the version of an installed package; None: it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
