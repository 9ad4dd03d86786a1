"""Write text with the model that a swarm has trained so far.

$ volunteer sample "def "  # go on from these words with the newest version
$ volunteer sample --temperature 0  # the likeliest token each time
"""

from client.cli.reach.home import find_home
from client.cli.reach.target import find_swarm
from client.cli.terminal.output import print_json, printable, say
from client.cli.terminal.parameters import AsJson, Checkpoints, KnownSwarm
from client.errors import UsageError

DEFAULT_PROMPT = "def "


def sample(
    prompt: str = DEFAULT_PROMPT,
    /,
    *,
    swarm: KnownSwarm = None,
    checkpoint: Checkpoints = (),
    length: int = 400,
    temperature: float = 0.8,
    top_k: int = 40,
    seed: int = 0,
    json: AsJson = False,
) -> None:
    """Write text with the model a swarm has trained so far.

    Args:
        prompt: Text to go on from.
        length: Tokens to write; in most swarms a token is a byte.
        temperature: 0 takes the likeliest token each time; higher is more daring.
        top_k: Draw from so many likeliest tokens only.
        seed: Same seed, same text.
    """
    home = find_home()
    found = find_swarm(home, swarm)

    from client.cli.models.model_source import needed_model
    from client.cli.models.newest import needed_tokenizer, newest_model
    from model_zoo.sample import stream  # torch: when all else is in order

    trained = newest_model(home, found, checkpoint)
    model, tokenizer = needed_model(trained), needed_tokenizer(trained)
    try:
        pieces = stream(
            *(model, prompt, length),
            temperature=temperature,
            top_k=top_k,
            seed=seed,
            tokenizer=tokenizer,
        )
        if json:
            of = {"swarm": trained.swarm, "version": trained.version}
            print_json({**of, "prompt": prompt, "text": "".join(pieces)})
            return
        say(f"{trained.manifest.name}, version {trained.version} of {trained.steps}")
        print(printable(prompt), end="", flush=True)
        for text in pieces:
            print(printable(text), end="", flush=True)
        print()
    except ValueError as error:
        raise UsageError(str(error), "see volunteer sample --help") from error
