"""The aggregation rules: what is made of the contributions of a stage's replicas to a step."""

from dataclasses import dataclass

DEFAULT = "sum"


@dataclass(frozen=True, slots=True)
class AggregationRule:
    """The properties of a rule, wherever it is computed.

    A contribution is the sum of the gradients of one replica's microbatches; the result stands for
    the sum over all microbatches of the step. A single contribution is the result.

    Fields:
        replicas: of a stage, from which on it does all that it is for; fewer are averaged with
            their norms bounded.
        robust: of three contributions or more, one that is far from most others has no part in the
            result, however large it is: so owners refuse none for its size. All of a segment's are
            kept until the last one is here. The result depends on which replica computed which
            microbatch, so what encoding took from it does not come back with another contribution.
        secret: no replica sees another's contribution, only their sum (``protocol/secrecy``); the
            averaging codec is then the ring's.
        about: what it does with the contributions, for people.
    """

    replicas: int = 1
    robust: bool = False
    secret: bool = False
    about: str = "added up"


RULES: dict[str, AggregationRule] = {
    DEFAULT: AggregationRule(),
    "centred-clipping": AggregationRule(
        replicas=3,
        robust=True,
        about="averaged; those far from most others are clipped or left out",
    ),
    "secure": AggregationRule(
        replicas=4,
        secret=True,
        about="added up behind masks; no volunteer sees another's, only the sum",
    ),
}
"""Every rule that a manifest may name. A new one is a line here and the file of its name, with _
for -, in `client.compute.aggregation`; a secret one adds masked integers instead (`client.compute.
masked_averaging`)."""
