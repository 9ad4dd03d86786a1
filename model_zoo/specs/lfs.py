"""Pointers of Git LFS: what a clone has in place of a large file until it is fetched."""

from typing import Final

POINTER: Final = (
    "is a pointer of Git LFS and not the file itself: run git lfs pull in its folder, or download "
    "the file"
)
MAX_POINTER_BYTES: Final = 1024
_BEGIN = b"version https://git-lfs.github.com/spec/"


def is_pointer(data: bytes) -> bool:
    """Whether a file that begins so is a pointer."""
    return data.startswith(_BEGIN)
