"""What a boundary between two stages shows of the text, and what hiding it costs.

    python -m tests.bench.privacy [--data TEXT] [--steps 60] [--sums 16] [--record]

The tiny preset is trained cut into two stages of two layers, once for each way to treat the tensor
that crosses: as it is, in S8, in S8 after a secret rotation, with Gaussian noise. The noise is
added in training and in evaluation; a sigma of 1 is the tensor's own root mean square.

The attacker holds the next stage, or listens in its place. It knows the model, which every member
may download. From text of its own it fits a ridge regression from what crosses at a token's place
to that token. Counted is the share of tokens of unknown text (held out from training) that the
regression names. A rotation is attacked in three ways: not at all; with tokens that the attacker
knows, whose tensors give the rotation by least squares (Schönemann 1966); and with no known token,
from the axes in which the tensors vary most, whose directions their skew tells.

Homomorphic sums are of Paillier's scheme with 2,048 bits, from the package `phe`; without it the
row is left out: `pip install phe`. Takes two minutes on a quiet machine.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from client.cli.founding.presets import PRESETS
from client.compute.codec import decode, encode
from model_zoo.data import Corpus
from model_zoo.datasets.corpus import open_source
from model_zoo.reference import TrainingPlan, WireContext, train_reference
from model_zoo.stages import Stage, summed_loss
from model_zoo.whole import load_whole
from tests.bench import figures as page

PRESET = PRESETS["tiny"]
CUT = (2, 2)
SEED = 1337
RIDGE = 1e-3
"""Of the mean square of the tensors."""
SEQUENCES = 4
ATTACKED, FITTED = 32, 64
"""Batches of ``SEQUENCES``: of unknown text, and of the attacker's own."""
KNOWN = (32, 64, 128)
SIGMAS = (0.5, 1.0, 4.0)
KEY_BITS = 2048
TABLE = "privacy"
COMMAND = "python -m tests.bench.privacy"
MEASURES = ("tests/bench/privacy.py", "client/compute/codec.py", "model_zoo/reference.py")

Change = Callable[[Tensor, str], Tensor]
"""What the other side gets of a tensor (B, T, C), "forward" or "backward"."""


# --- ways to treat the tensor ---------------------------------------------------------------


def nothing(x: Tensor, direction: str) -> Tensor:
    """As it is."""
    return x


def s8(x: Tensor, direction: str) -> Tensor:
    """Through the codec of the wire."""
    way = "forward" if direction == "forward" else "backward"
    return decode(bytes(encode(x, "s8", direction=way)), x.shape)


def rotation(width: int, seed: int) -> Tensor:
    """Return a random orthogonal matrix (C, C)."""
    drawn = torch.randn(width, width, generator=torch.Generator().manual_seed(seed))
    return torch.linalg.qr(drawn)[0]


def rotated(secret: Tensor) -> Change:
    """Rotate, send in S8, rotate back."""
    return lambda x, direction: s8(x @ secret, direction) @ secret.T


def noisy(sigma: float) -> Change:
    """Add noise to activations and send them in S8; gradients have none."""
    generator = torch.Generator().manual_seed(SEED)

    def change(x: Tensor, direction: str) -> Tensor:
        if direction == "backward":
            return s8(x, direction)
        scale = sigma * x.square().mean().sqrt()
        return s8(x + scale * torch.randn(x.shape, generator=generator), direction)

    return change


# --- training -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trained:
    """A model, and what its training cost."""

    model: Stage
    loss: float
    """Held out, nats a token, with the change at the boundary."""
    tokens_per_s: float
    """Of processor time, with one thread."""


def train(corpus: Corpus, change: Change, steps: int) -> Trained:
    """Train in two stages between which ``change`` acts."""
    plan = TrainingPlan(PRESET.model, CUT, PRESET.optimizer, SEED, steps, 4, SEQUENCES)

    def wire(x: Tensor, place: WireContext) -> Tensor:
        return change(x, place.direction)

    began = time.process_time()
    run = train_reference(plan, corpus, wire=wire, threads=1)
    seconds = time.process_time() - began
    model = load_whole(PRESET.model, run.state)
    rate = steps * plan.tokens_per_step / seconds
    return Trained(model, held_out_loss(model, corpus, change), rate)


def held_out_loss(model: Stage, corpus: Corpus, change: Change) -> float:
    """Return the mean loss on unknown text."""
    total, count = 0.0, 0
    with torch.no_grad():
        for index in range(ATTACKED):
            samples = held_out(corpus, index)
            x = change(run_layers(model, samples[:, :-1], CUT[0]), "forward")
            for layer in range(CUT[0], PRESET.model.layers):
                x = model.blocks[str(layer)](x)
            if model.head is None:
                raise ValueError("a whole model has a head")
            total += summed_loss(model.head(x), samples[:, 1:]).item()
            count += samples[:, 1:].numel()
    return total / count


def held_out(corpus: Corpus, index: int) -> Tensor:
    """Return samples (B, T + 1) of text that was not trained on."""
    samples = corpus.held_out_batch(index, SEQUENCES, PRESET.model.context)
    return torch.from_numpy(samples.astype("int64"))


def run_layers(model: Stage, tokens: Tensor, layers: int) -> Tensor:
    """Return what crosses after so many layers: tokens (B, T) to (B, T, C)."""
    if model.embed is None:
        raise ValueError("a whole model has an embedding")
    x: Tensor = model.embed(tokens)
    for layer in range(layers):
        x = model.blocks[str(layer)](x)
    return x


# --- the attack -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Seen:
    """Tokens (N,) and what crossed at their places (N, C)."""

    tokens: Tensor
    numbers: Tensor


def look(model: Stage, batches: Sequence[Tensor], layers: int, change: Change) -> Seen:
    """Return what crosses for samples (B, T + 1)."""
    tokens, numbers = [], []
    with torch.no_grad():
        for samples in batches:
            inputs = samples[:, :-1]
            tokens.append(inputs.flatten())
            numbers.append(change(run_layers(model, inputs, layers), "forward").flatten(0, 1))
    return Seen(torch.cat(tokens), torch.cat(numbers))


def fit(seen: Seen, vocab: int) -> Tensor:
    """Return the inverter: a ridge regression (C + 1, V) to the tokens."""
    x = with_one(seen.numbers)
    wanted = torch.nn.functional.one_hot(seen.tokens, vocab).double()
    square = x.T @ x
    square += RIDGE * square.diagonal().mean() * torch.eye(len(square), dtype=square.dtype)
    return torch.linalg.solve(square, x.T @ wanted)


def with_one(numbers: Tensor) -> Tensor:
    """Append the constant (N, C + 1)."""
    return torch.cat([numbers, torch.ones(len(numbers), 1)], 1).double()


def recovered(inverter: Tensor, seen: Seen) -> float:
    """Return the share of tokens that the inverter names."""
    named = (with_one(seen.numbers) @ inverter).argmax(1)
    return (named == seen.tokens).double().mean().item()


def rotation_from_known(plain: Tensor, crossed: Tensor) -> Tensor:
    """Return the rotation (C, C) from known tensors and what crossed of them, (K, C) each."""
    left, _, right = torch.linalg.svd(plain.T.double() @ crossed.double())
    return (left @ right).float()


def rotation_from_axes(plain: Tensor, crossed: Tensor) -> Tensor:
    """Return a guess at the rotation from other text: equal axes in the order of their variance,
    turned so that their skew agrees."""
    return axes(plain) @ axes(crossed).T


def axes(numbers: Tensor) -> Tensor:
    """Return the principal axes (C, C), each with its skew positive."""
    centred = (numbers - numbers.mean(0)).double()
    found = torch.linalg.eigh(centred.T @ centred)[1]
    return (found * (centred @ found).pow(3).sum(0).sign()).float()


# --- rows -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One figure."""

    what: str
    value: str
    spread: str = "one run"


def boundary_rows(source: str, steps: int) -> Iterator[Row]:
    """Train in every way and attack what crosses."""
    corpus, vocab = open_source(source), PRESET.model.vocab
    unknown = [held_out(corpus, index) for index in range(ATTACKED)]
    own = [attackers_own(corpus, index, steps) for index in range(FITTED)]
    share, loss = without_looking(own, unknown, vocab)
    yield Row("the frequencies of tokens alone, without looking", f"{share:.2f}; {loss:.2f}; -")
    secret = rotation(PRESET.model.width, SEED)
    ways: dict[str, Change] = {
        "fp32, nothing hidden": nothing,
        "S8": s8,
        "a secret rotation": rotated(secret),
        **{f"noise of {sigma:g} sigma": noisy(sigma) for sigma in SIGMAS},
    }
    for name, change in ways.items():
        trained = train(corpus, change, steps)
        cost = f"{trained.loss:.2f}; {trained.tokens_per_s / 1000:.1f}k"
        if change is ways["a secret rotation"]:
            found = attack_rotation(trained.model, own, unknown, secret)
            yield from (Row(f"{name}, {how}", f"{share:.2f}; {cost}") for how, share in found)
            continue
        inverter = fit(look(trained.model, own, CUT[0], change), vocab)
        share = recovered(inverter, look(trained.model, unknown, CUT[0], change))
        yield Row(name, f"{share:.2f}; {cost}")
        if name == "S8":
            yield deeper(trained.model, own, unknown)


def attackers_own(corpus: Corpus, index: int, steps: int) -> Tensor:
    """Return samples (B, T + 1) that training did not use."""
    number = steps * PRESET.microbatches_per_step + index
    samples = corpus.sample(number, SEQUENCES, PRESET.model.context, SEED + 1)
    return torch.from_numpy(samples.astype("int64"))


def without_looking(
    own: Sequence[Tensor], unknown: Sequence[Tensor], vocab: int
) -> tuple[float, float]:
    """Return the share that the most common token has, and the loss of the frequencies."""
    counts = torch.cat([samples.flatten() for samples in own]).bincount(minlength=vocab) + 1
    tokens = torch.cat([samples.flatten() for samples in unknown])
    share = (tokens == counts.argmax()).double().mean().item()
    return share, -(counts / counts.sum()).log()[tokens].mean().item()


def deeper(model: Stage, own: Sequence[Tensor], unknown: Sequence[Tensor]) -> Row:
    """Attack every boundary that the model can be cut at."""
    shares = []
    for layers in range(1, PRESET.model.layers):
        inverter = fit(look(model, own, layers, s8), PRESET.model.vocab)
        shares.append(f"{recovered(inverter, look(model, unknown, layers, s8)):.2f}")
    return Row(
        f"S8, cut after 1 to {PRESET.model.layers - 1} of {PRESET.model.layers} layers",
        " / ".join(shares),
    )


def attack_rotation(
    model: Stage, own: Sequence[Tensor], unknown: Sequence[Tensor], secret: Tensor
) -> Iterator[tuple[str, float]]:
    """Yield each attack with the share of tokens that it names."""
    plain = look(model, own, CUT[0], nothing)
    crossed = look(model, unknown, CUT[0], lambda x, direction: s8(x @ secret, direction))
    inverter = fit(plain, PRESET.model.vocab)
    yield "not attacked", recovered(inverter, crossed)
    guessed = rotation_from_axes(plain.numbers, crossed.numbers)
    turned = Seen(crossed.tokens, crossed.numbers @ guessed.T)
    yield "no token known, from the axes of variance", recovered(inverter, turned)
    true = look(model, unknown, CUT[0], nothing).numbers
    for known in KNOWN:
        found = rotation_from_known(true[:known], crossed.numbers[:known])
        rest = Seen(crossed.tokens[known:], crossed.numbers[known:] @ found.T)
        yield f"{known} tokens known", recovered(inverter, rest)


def sum_rows(numbers: int) -> Iterator[Row]:
    """Sum two small contributions under Paillier; nothing without the package."""
    try:
        from phe import paillier  # type: ignore[import-not-found, unused-ignore]
        from phe.util import HAVE_GMP
    except ImportError:
        print("no homomorphic sums: pip install phe")
        return
    public, private = paillier.generate_paillier_keypair(n_length=KEY_BITS)
    first, second = torch.randn(2, numbers, dtype=torch.float64).tolist()
    began = time.perf_counter()
    hidden = [[public.encrypt(number) for number in part] for part in (first, second)]
    encrypted = time.perf_counter()
    added = [a + b for a, b in zip(*hidden, strict=True)]
    summed = time.perf_counter()
    shown = [private.decrypt(number) for number in added]
    ended = time.perf_counter()
    if any(abs(s - a - b) > 1e-9 for s, a, b in zip(shown, first, second, strict=True)):
        raise ArithmeticError("the sum is wrong")
    each = [
        1000 * (encrypted - began) / (2 * numbers),
        1000 * (summed - encrypted) / numbers,
        1000 * (ended - summed) / numbers,
    ]
    parameters = sum(tensor.numel() for tensor in load_zero().values())
    hours = each[0] * parameters / 3.6e6
    yield Row(
        f"a homomorphic sum of two tensors of {numbers} numbers (Paillier, {KEY_BITS} bits): "
        "encrypt / add / decrypt a number",
        f"{each[0]:.1f} / {each[1]:.2f} / {each[2]:.1f} ms; {2 * KEY_BITS // 8} bytes a number",
        f"with{'' if HAVE_GMP else 'out'} GMP",
    )
    yield Row(
        f"the same for the tiny preset's {parameters:,} parameters: a step's contribution of one "
        "replica",
        f"{hours:.1f} h and {parameters * 2 * KEY_BITS / 8e6:.0f} MB, against "
        f"{parameters * 1.03 / 1e6:.1f} MB in S8",
        "computed from the row above",
    )


def load_zero() -> dict[str, Tensor]:
    """Return the tiny preset's parameters at the start."""
    from model_zoo.whole import build_whole

    return build_whole(PRESET.model, SEED).state_dict()


def main() -> None:
    """Measure, print, and record if asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="stdlib")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--sums", type=int, default=16, help="numbers of the homomorphic sum")
    page.add_record_flag(parser)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for part in (boundary_rows(asked.data, asked.steps), sum_rows(asked.sums)):
        for row in part:
            print(f"{row.what}: {row.value}", flush=True)
            rows.append(row)
    if asked.record:
        page.record(
            [page.figure(TABLE, r.what, r.value, r.spread, COMMAND, MEASURES) for r in rows]
        )


if __name__ == "__main__":
    main()
