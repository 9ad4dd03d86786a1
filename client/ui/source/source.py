"""The interface of a source of updates: a running node, or a test."""

from __future__ import annotations

from typing import Protocol

from client.ui.source.mailbox import Mailbox


class Source(Protocol):
    """Brings updates into a mailbox from a thread of its own."""

    def start(self, mailbox: Mailbox) -> None:
        """Begin; returns at once."""

    def stop(self) -> None:
        """End the thread and free its resources; returns within two seconds."""

    def command(self, method: str, **params: object) -> None:
        """Send a command and return; the answer arrives in the mailbox."""
