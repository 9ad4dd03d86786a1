"""Several documents in one sequence: none sees another, and each counts its positions from 0.

Attention is causal within each document: the same kernel, with the same numbers, as if the document
were alone, because documents of the same length are taken out and run together as sequences. So
there is no mask of T x T, and less to compute than without borders. There are as many calls as
different lengths: less than the square root of 2 B T, wherever the borders are. Everything else in
a layer is done to each token by itself.

Shapes: B sequences, T tokens, H heads, D head width; N documents of L tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Queries, keys and values, (N, H, L, D) each, to what is mixed, (N, H, L, D)."""


@dataclass(frozen=True, slots=True)
class Documents:
    """Where the documents of a batch lie.

    Fields:
        positions: of each token in its document, (B, T) int64.
        order: numbers of all tokens, (B T,) int64: shorter documents first, each from its first
            token to its last.
        places: of each token in that order, (B T,) int64.
        groups: number N and length L of the documents of one length.
    """

    positions: Tensor
    order: Tensor
    places: Tensor
    groups: tuple[tuple[int, int], ...]

    def attend(self, attend: Attend, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return attention within each document, (B, H, T, D).

        Args:
            attend: what does it in whole sequences.
            q: (B, H, T, D).
            k: as q, perhaps with fewer heads; v: as k.
        """
        sizes = [count * length for count, length in self.groups]
        ordered = [
            torch.split(part.transpose(1, 2).flatten(0, 1).index_select(0, self.order), sizes)
            for part in (q, k, v)
        ]  # (N L, H, D) of each group
        mixed = []
        for (count, length), *parts in zip(self.groups, *ordered, strict=True):
            found = attend(*(p.view(count, length, *p.shape[1:]).transpose(1, 2) for p in parts))
            mixed.append(found.transpose(1, 2).flatten(0, 1))  # (N L, H, D)
        back = torch.cat(mixed).index_select(0, self.places)  # (B T, H, D)
        return back.view(q.shape[0], q.shape[2], *back.shape[1:]).transpose(1, 2)


def documents_of(begins: Tensor | None, device: torch.device) -> Documents | None:
    """Return the documents of a batch; None: each sequence is one.

    Args:
        begins: whether a document begins with a token, (B, T) bool on the CPU; one always begins
            with the first of a sequence. None: with no other.
        device: where the tensors are to be.
    """
    if begins is None or not bool(begins[:, 1:].any()):
        return None
    marked = begins.clone()
    marked[:, 0] = True
    of = marked.flatten().cumsum(0) - 1  # (B T,): number of each token's document
    lengths = of.bincount()
    starts = lengths.cumsum(0) - lengths
    positions = torch.arange(of.numel()) - starts[of]
    order = lengths[of].argsort(stable=True)
    counts = lengths.bincount()  # of documents, by length
    found = counts.nonzero().flatten()
    groups = zip(counts[found].tolist(), found.tolist(), strict=True)
    return Documents(
        positions.view(begins.shape).to(device),
        order.to(device),
        order.argsort().to(device),
        tuple(groups),
    )
