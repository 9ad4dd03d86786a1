"""A disk that is full: what takes the place of a call that writes, and files that end early."""

import errno
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Never


def full(*_: object, **__: object) -> Never:
    """Refuse as a full disk does."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Let the kernel refuse longer files with EFBIG, as a full disk would refuse with ENOSPC."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
