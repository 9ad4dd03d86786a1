"""Milliseconds of the parts of a microbatch."""

from __future__ import annotations

import argparse
from typing import Any

import torch

from client.compute.payload import Buffer
from tests.bench.gpu.work import Work, timed
from tests.support.compute_stages import LocalWorker


def breakdown(worker: LocalWorker, one: Work, asked: argparse.Namespace) -> dict[str, float]:
    """Return milliseconds of the parts of a microbatch, each waited for."""
    from client.compute.passes import run_forward, stage_input

    replica, part = worker.replica, one.part
    slot = replica.at(replica.version)
    tokens = one.sample(0)
    told: dict[str, float] = {}
    if part.embeds:
        told["tokens in"] = timed(asked.device, lambda: replica.wire.tokens_in(tokens))
    sent: list[Buffer] = [tokens]
    if not (part.embeds and part.has_head):
        there = torch.randn(replica.wire.boundary_shape, device=asked.device)
        payload = replica.wire.boundary_out(there, "forward")
        told["boundary in"] = timed(
            asked.device, lambda: replica.wire.boundary_in(payload, "forward", 0)
        )
        told["boundary out"] = timed(
            asked.device, lambda: replica.wire.boundary_out(there, "forward")
        )
        sent = [tokens] if part.embeds else [payload, tokens][: 1 + part.has_head]
    given, _ = stage_input(replica, 0, sent)

    def forth() -> Any:
        with replica.module.computing(given.x.device):
            leaf = given.x.detach()
            if leaf.is_floating_point():
                leaf.requires_grad_()
            return replica.module.hidden(leaf, None)

    ones = torch.ones_like(forth())
    told["blocks forward, graph"] = timed(asked.device, forth, 10)
    told["blocks forward and back"] = timed(
        asked.device, lambda: torch.autograd.backward(forth(), ones), 10
    )
    if not part.has_head:
        told["run_forward"] = timed(
            asked.device, lambda: run_forward(slot, given, with_graph=True), 10
        )
    told["zero gradients"] = timed(asked.device, slot.zero_gradients, 10)
    told["gradients within"] = timed(asked.device, lambda: slot.gradients_within(1e30), 10)
    told["count"] = timed(asked.device, lambda: slot.count(-1), 10)
    slot.clear()
    return {name: 1e3 * seconds for name, seconds in told.items()}
