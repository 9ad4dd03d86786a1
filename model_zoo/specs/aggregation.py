"""The aggregation rules: what is made of the contributions of a stage's replicas to a step."""

from dataclasses import dataclass

DEFAULT = "sum"


@dataclass(frozen=True, slots=True)
class AggregationRule:
    """The properties of a rule, wherever it is computed.

    A contribution is the sum of the gradients of one replica's microbatches; the result stands for
    the sum over all microbatches of the step. A single contribution is the result.

    Fields:
        streams: it takes one contribution at a time; if not, a replica keeps all of a segment's
            decoded until the last one is here.
        linear: the result of sums is the sum of the results, so it does not depend on which replica
            computed which microbatch, and what encoding took from a result may come back with any
            replica's next contribution.
        feedback: a replica may add to its next contribution what encoding took from the last one.
        replicas: of a stage, from which on it does all that it is for; fewer are averaged with
            their norms bounded (`client.compute.aggregation.kept`).
        leaves_out: of three contributions or more, one that is far from most others has no part in
            the result, however large it is: so owners refuse none for its size.
        secret: no replica sees another's contribution, only their sum (``protocol/secrecy``); the
            averaging codec is then the ring's.
        about: what it does with the contributions, for people.
    """

    streams: bool
    linear: bool
    feedback: bool
    replicas: int = 1
    leaves_out: bool = False
    secret: bool = False
    about: str = "added up"

    @property
    def feeds_results_back(self) -> bool:
        """Whether what encoding takes from a result is added to a later contribution."""
        return self.feedback and self.linear


RULES: dict[str, AggregationRule] = {
    DEFAULT: AggregationRule(streams=True, linear=True, feedback=True),
    "centred-clipping": AggregationRule(
        streams=False,
        linear=False,
        feedback=True,
        replicas=3,
        leaves_out=True,
        about="averaged; those far from most others are clipped or left out",
    ),
    "trimmed-mean": AggregationRule(
        streams=False,
        linear=False,
        feedback=True,
        replicas=3,
        about="averaged number by number without the largest and smallest third",
    ),
    "secure": AggregationRule(
        streams=True,
        linear=True,
        feedback=True,
        replicas=4,
        secret=True,
        about="added up behind masks; no volunteer sees another's, only the sum",
    ),
}
"""Every rule that a manifest may name. A new one is a line here and the file of its name, with _
for -, in `client.compute.aggregation`; a secret one adds masked integers instead (`client.compute.
masked_averaging`)."""
