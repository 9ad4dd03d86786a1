"""A run of the reference trainer on disk, so that it goes on where it was cut off.

A safetensors file: parameters, what the optimizer keeps, the gradients and the earlier parameters
that a delayed update still needs, and the losses so far; its metadata name the plan and the text.
Nothing else decides what comes next, since samples are a function of the plan's seed and their
number, so a run that was resumed ends with the same bits.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

_KEPT = "optimizer/"


class Unfinished:
    """The file of one unfinished run.

    Args:
        path: the file.
        run: identifies the run in words; a file of another run is not resumed.
    """

    def __init__(self, path: Path, run: str) -> None:
        self._path, self._run = path, run

    def save(
        self,
        losses: Sequence[float],
        parameters: Sequence[nn.Parameter],
        optimizer: torch.optim.Optimizer,
        pending: Sequence[Tensor | None],
        earlier: Sequence[Tensor | None],
    ) -> None:
        """Replace the file atomically.

        Args:
            losses: of all steps so far.
            parameters: of the model.
            optimizer: with its state.
            pending: gradients of the delayed update, one per parameter.
            earlier: parameters before the last update, for the delayed one.
        """
        tensors: dict[str, Tensor] = {"losses": torch.tensor(losses, dtype=torch.float64)}
        for index, parameter in enumerate(parameters):
            tensors[f"parameter.{index}"] = parameter.detach()
            kept = optimizer.state.get(parameter, {})
            tensors |= {f"{_KEPT}{name}.{index}": tensor for name, tensor in kept.items()}
        for name, held in (("pending", pending), ("earlier", earlier)):
            tensors |= {f"{name}.{i}": each for i, each in enumerate(held) if each is not None}
        new = self._path.with_suffix(".new")
        save_file(tensors, new, metadata={"run": self._run})
        os.replace(new, self._path)

    def load(
        self,
        parameters: Sequence[nn.Parameter],
        optimizer: torch.optim.Optimizer,
        pending: list[Tensor | None],
        earlier: list[Tensor | None],
    ) -> list[float]:
        """Restore a run and return its losses so far; [] without a file.

        Args:
            parameters: of the model, overwritten.
            optimizer: its state is overwritten.
            pending: gradients of the delayed update, overwritten.
            earlier: parameters before the last update, overwritten.

        Raises:
            ValueError: the file is of another run, or not a checkpoint of this program.
        """
        if not self._path.exists():
            return []
        try:
            with safe_open(self._path, "pt") as file:
                found = (file.metadata() or {}).get("run")
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise ValueError(f"{self._path} cannot be read ({error}); delete it") from None
        if found != self._run:
            raise ValueError(f"{self._path} is of another run ({found}); delete it or name another")
        with torch.no_grad():
            for index, parameter in enumerate(parameters):
                parameter.copy_(tensors[f"parameter.{index}"])
                if kept := _kept(tensors, index):
                    optimizer.state[parameter] = kept
                pending[index] = tensors.get(f"pending.{index}")
                earlier[index] = tensors.get(f"earlier.{index}")
        losses: list[float] = tensors["losses"].tolist()
        return losses


def _kept(tensors: Mapping[str, Tensor], index: int) -> dict[str, Tensor]:
    """Return what the optimizer keeps of a parameter, by torch's names; all of it are tensors."""
    ending = f".{index}"
    return {
        name.removeprefix(_KEPT).removesuffix(ending): tensor
        for name, tensor in tensors.items()
        if name.startswith(_KEPT) and name.endswith(ending)
    }
