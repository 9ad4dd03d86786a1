"""The table of commands, with the purpose and examples of each. Imports none of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from cyclopts import App, Parameter

TAKE_PART: Final = "Take part"
WATCH: Final = "Watch"
USE: Final = "The model"
MACHINE: Final = "This machine"
TRY: Final = "Try and measure"
GROUP_NAMES: Final = (TAKE_PART, WATCH, USE, MACHINE, TRY)

EPILOGUE: Final = (
    "Every command knows --help, and --debug, which shows tracebacks. Settings come from flags, "
    "then from VOLUNTEER_* variables, then from the configuration file.\n\n"
    "Exit codes: 0 ok, 1 failed, 2 usage, 3 not running, 69 swarm unreachable, 75 try again "
    "later, 77 refused, 78 configuration, 130 interrupted."
)
"""The text below all help."""


def _default_words(value: object) -> Any:
    """Return a default for the help; None where it is obvious."""
    return None if value is None or value is False or value in ("", ()) else str(value)


PARAMETER: Final = Parameter(negative=(), show_default=_default_words)
"""Defaults of every flag: there is no --no-x, and a switch is off."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command of ``volunteer``; ``module`` names the module of its code."""

    group: str
    summary: str
    examples: tuple[tuple[str, str], ...] = ()
    """Command lines without the first word, each with its effect."""
    note: str = ""
    nested: bool = False
    """Whether it has commands of its own."""

    laboratory: bool = False
    """Whether it tests or measures whole volunteers: its code is in
    ``client/lab/NAME/command.py``."""

    def module(self, name: str) -> str:
        """Return the module of its code, which has a function of the command's name."""
        return f"client.lab.{name}.command" if self.laboratory else f"client.cli.commands.{name}"

    @property
    def epilogue(self) -> str:
        """The text below its help."""
        lines = [f"  volunteer {line}\n      {words}" for line, words in self.examples]
        examples = "\n".join(["Examples:", *lines]) if lines else ""
        return "\n\n".join(part for part in (examples, self.note, EPILOGUE) if part)


COMMANDS: Final[dict[str, Command]] = {
    "create": Command(
        TAKE_PART,
        "Found a swarm: write its signed .swarm file and print an invite.",
        (("create --preset tiny --out x.swarm", "found a small swarm; give x.swarm to others"),),
    ),
    "join": Command(
        TAKE_PART,
        "Take part in a swarm's training until it is done or you stop.",
        (
            ("join --swarm x.swarm", "start in the background and show what it does"),
            ("join --swarm my-swarm --detach", "a swarm joined before; return when it answers"),
            ("join --swarm - --headless < invite", "in this process, for services; log on stderr"),
            ("join --swarm x.swarm --threads 2 --upload-limit 1MB/s", "lend less"),
        ),
        "Without --swarm it reads VOLUNTEER_SWARM, or takes the only swarm joined before. An "
        "invite with a secret is better read from a file or stdin: everybody on this machine can "
        "see command lines.\n\n"
        "In a terminal it says what the swarm is and costs, asks once for each, starts the "
        "volunteer in the background and shows it; leaving the screen, or losing the terminal, "
        "leaves it running.",
    ),
    "invite": Command(
        TAKE_PART,
        "Print a fresh invite, with members of the swarm that can be reached now.",
        (
            ("invite", "of the volunteer that runs here; else with the members met last"),
            ("invite --qr", "with a QR code"),
            ("invite --out my-swarm.swarm", "also as a file, for whoever cannot scan or paste"),
        ),
        "The invite is the only line on stdout. That of a private swarm has its secret.",
    ),
    "pause": Command(
        TAKE_PART,
        "Give this machine back for a while: free memory and GPU, stay in the swarm.",
        (
            ("pause", "until: volunteer resume"),
            ("pause --for 2h", "go on by itself in two hours"),
            ('pause --until 18:00 --reason "a meeting"', "go on by itself at six"),
        ),
    ),
    "resume": Command(TAKE_PART, "Take part again after a pause.", (("resume", "now"),)),
    "finish": Command(
        TAKE_PART,
        "Leave the swarm in order: hand over, close the step, save, say goodbye.",
        (
            ("finish", "leave the swarm that runs here and wait until it has left"),
            ("finish --swarm my-swarm --yes", "do not ask, even if the swarm will have to wait"),
        ),
        "Ctrl-C or SIGTERM to volunteer join --headless do the same; twice, and it ends at once.",
    ),
    "stop": Command(
        TAKE_PART,
        "As finish, but without asking and without waiting.",
        (("stop", "for scripts"),),
    ),
    "attach": Command(
        WATCH,
        "Show the volunteer that runs here, or on another machine through SSH.",
        (
            ("attach", "the screen; d leaves it"),
            ("attach --host me@lab", "a volunteer on another machine; needs only SSH"),
            ("attach --record run.jsonl", "write what is shown to a file, for replay"),
        ),
    ),
    "status": Command(
        WATCH,
        "Show what the volunteer on this machine is doing.",
        (
            ("status", "once"),
            ("status --watch", "every second"),
            ("status --watch --plain", "a line per step, for screen readers and logs"),
            ("status --json | jq .loss", "for programs"),
        ),
    ),
    "peers": Command(
        WATCH,
        "List the members of the swarm and the stages they hold.",
        (("peers --json | jq '.peers | length'", "how many there are"),),
    ),
    "stages": Command(
        WATCH, "List the model's stages and who serves them.", (("stages", "as a table"),)
    ),
    "matches": Command(
        WATCH,
        "Show who holds which stage with whose consent, and why.",
        (
            ("matches --swarm my-swarm --watch", "our seats, every stage, why we moved or stayed"),
            ("matches --records", "check the signatures of what was agreed; 1 if one is wrong"),
        ),
    ),
    "events": Command(
        WATCH,
        "Print what happened: members, faults, and how they were mended.",
        (
            ("events -f", "go on with what comes"),
            ("events --since 10m --json", "the last ten minutes, one JSON document per line"),
        ),
    ),
    "logs": Command(
        WATCH,
        "Print the volunteer's log, whether it runs or not.",
        (
            ("logs -n 50", "the last 50 lines"),
            ("logs -f --level warning", "only what is wrong, as it comes"),
            ("logs --since 18:00", "since six"),
        ),
    ),
    "credit": Command(
        WATCH,
        "Show what this volunteer has done for its swarms.",
        (("credit --json", "for programs"),),
    ),
    "replay": Command(
        WATCH,
        "Play a recorded run in the terminal interface.",
        (
            ("attach --record run.jsonl", "make a recording first"),
            ("replay run.jsonl --speed 10", "play it ten times as fast"),
        ),
    ),
    "checkpoint": Command(
        USE,
        "List, verify and restore the checkpoints on this machine.",
        nested=True,
    ),
    "sample": Command(
        USE,
        "Write text with the model a swarm has trained so far.",
        (("sample --help", "prompt, length, temperature"),),
    ),
    "export": Command(
        USE,
        "Save the model in the layout that Hugging Face transformers loads.",
        (("export --out model", "the newest version"),),
    ),
    "doctor": Command(
        MACHINE,
        "Check that this machine can take part, and say what to mend.",
        (
            ("doctor", "a line per check: ok, warn or fail"),
            ("doctor --bundle report.zip", "a file for a report, without secrets"),
        ),
        "The bundle holds these lines, versions, settings, the state of what runs and the end of "
        "the log. Look into it before you give it away.",
    ),
    "config": Command(
        MACHINE,
        "Show, change, locate or check the settings.",
        (
            ("config show --origin", "every setting and where it comes from"),
            ("config set upload_limit_bytes_per_s 2MB/s", "from the next start"),
            ("config get threads", "one setting"),
            ("config edit", "in your editor; checked afterwards"),
        ),
        "Flags win over VOLUNTEER_* variables, those over --config, that over your file, that "
        "over the administrator's, that over the defaults.",
        nested=True,
    ),
    "identity": Command(MACHINE, "Show or create this volunteer's identity.", nested=True),
    "service": Command(
        MACHINE,
        "Run as a service: write, remove or look at the unit.",
        (
            ("service install --swarm x.swarm", "write the unit of this user; starts nothing"),
            ("service install --swarm x.swarm --start", "and start it now and at every login"),
            ("service status", "installed, enabled, active"),
        ),
        "With --system it is a service of the machine; that needs root.",
        nested=True,
    ),
    "cache": Command(
        MACHINE,
        "Show what is kept on disk, and make room.",
        (("cache ls", "by kind"), ("cache prune --dry-run", "what would be removed")),
        nested=True,
    ),
    "completion": Command(
        MACHINE,
        "Print the completion script of a shell.",
        (
            (
                "completion bash > ~/.local/share/bash-completion/completions/volunteer",
                "for bash; from the next shell on",
            ),
            ("completion fish > ~/.config/fish/completions/volunteer.fish", "for fish"),
        ),
    ),
    "uninstall": Command(
        MACHINE,
        "Remove the service and, with --purge, all that is kept.",
        (("uninstall --purge", "asks first; identity and checkpoints go, too"),),
        "A checkpoint that nobody else has is lost with --purge, and the next join is a "
        "stranger's. The program itself is removed by what installed it: pipx uninstall volunteer.",
    ),
    "version": Command(MACHINE, "Print the versions that matter in a report."),
    "demo": Command(
        TRY,
        "Train with four volunteers on this machine, kill one, show that nothing is lost.",
        laboratory=True,
    ),
    "simulate": Command(
        TRY, "Simulate the matching of many volunteers and compare policies.", laboratory=True
    ),
    "plan": Command(
        TRY,
        "Say what machines would reach together, and how best to cut the model.",
        (
            ("plan --machines 4 --up 20Mbit/s --rtt-ms 60", "four like this one, at home"),
            ("plan --preset small --machines 16 --gflops 400 --up 50Mbit/s", "sixteen others"),
            ("plan --swarm x.swarm --table machines.toml", "different ones, for a founded swarm"),
            ("plan --machines 8 --watts 150 --price 0.30 --tokens 1000000000", "what it costs"),
            ("plan --no-measure --json | jq .best", "for programs"),
        ),
        "A table lists kinds of machines, each under [[machine]], with any of name, count, "
        "gflops (or tokens_per_s, training the whole model alone), memory, up, down, rtt_ms and "
        'watts: count = 3, gflops = 400.0, memory = "16GB", up = "20Mbit/s". What is left out is '
        "as this machine, measured.\n\n"
        "Fewer than --redundancy replicas of a stage are planned only where there are too few "
        "machines. Not reckoned: leaving and joining, second seats, checkpoints.",
    ),
    "bench": Command(
        TRY, "Measure this machine: compute, memory, codec, loopback. Prints JSON.", laboratory=True
    ),
    "chaos": Command(
        TRY,
        "Do faults to volunteers on this machine and report what they cost.",
        (
            ("chaos --quick", "a few"),
            ("chaos --minutes 10 --faults kill,stop", "these, for ten minutes"),
            ("chaos --only kill@averaging,stage", "these only"),
        ),
        "Faults: kill, stop, worker (each at forward, backward, before-optimizer, "
        "after-optimizer, averaging, recovery, checkpoint), corrupt (at forward, backward, "
        "averaging), disk@checkpoint, partition, delay, slow, stage. Ends with 1 if anything was "
        "lost that need not be.",
        laboratory=True,
    ),
}


def nested_app(name: str) -> App:
    """Return the app of a command that has commands of its own."""
    epilogue = COMMANDS[name].epilogue
    return App(name=name, default_parameter=PARAMETER, help_epilogue=epilogue)
