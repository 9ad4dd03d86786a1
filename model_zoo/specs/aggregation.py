"""The aggregation rules: what is made of the contributions of a stage's replicas to a step."""

from dataclasses import dataclass

DEFAULT = "sum"


@dataclass(frozen=True, slots=True)
class AggregationRule:
    """The properties of a rule, wherever it is computed.

    A contribution is the sum of the gradients of one replica's microbatches; the result stands for
    the sum over all microbatches of the step. A single contribution is the result.

    Fields:
        robust_from: replicas of a stage from which on a lying minority has little part in the
            result; fewer are averaged with their norms bounded. 0: the rule is not robust.
        about: what it does with the contributions, for people.
    """

    robust_from: int = 0
    about: str = "added up"

    @property
    def robust(self) -> bool:
        """Whether, of three contributions or more, one that is far from most others has no part in
        the result, however large it is: so owners need not leave it out.

        All of a segment's are kept until the last one is here. The result depends on which replica
        computed which microbatch, so what encoding took from it does not come back with another
        contribution.
        """
        return self.robust_from > 0


RULES: dict[str, AggregationRule] = {
    DEFAULT: AggregationRule(),
    "centred-clipping": AggregationRule(
        robust_from=3,
        about="averaged; those far from most others are clipped or left out",
    ),
}
"""Every rule that a manifest may name; `client.compute.aggregation` computes them."""
