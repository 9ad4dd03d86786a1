"""The table of commands, with the purpose and examples of each. Imports none of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from cyclopts import App, Parameter

FIRST_GROUP: Final = "First"
FIRST: Final = (
    "join",
    "attach",
    "status",
    "pause",
    "resume",
    "finish",
    "logs",
    "doctor",
    "invite",
    "sample",
)
"""What a volunteer needs, in the order in which the help lists it before all else."""
TAKE_PART: Final = "More: the swarm"
WATCH: Final = "More: watch"
USE: Final = "More: the model"
MACHINE: Final = "More: this machine"
TRY: Final = "More: try and measure"
GROUP_NAMES: Final = (FIRST_GROUP, TAKE_PART, WATCH, USE, MACHINE, TRY)

EPILOGUE: Final = (
    "Every command takes --help, and --debug, which shows tracebacks. Settings come from flags, "
    "then from VOLUNTEER_* variables, then from the configuration file.\n\n"
    "Exit codes: 0 ok, 1 failed, 2 usage, 3 not running, 69 swarm unreachable, 75 try again "
    "later, 77 refused, 78 configuration, 130 interrupted."
)
"""The text below all help, in Markdown."""


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
        """The text below its help, in Markdown."""
        lines = [f"- volunteer {line}  \n  {words}" for line, words in self.examples]
        examples = "\n".join(["Examples:\n", *lines]) if lines else ""
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
            ("join --swarm my-swarm --detach", "a swarm joined before; return when it has started"),
            ("join --swarm - --headless < invite", "in this process, for services; log on stderr"),
            ("join --swarm x.swarm --threads 2 --upload-limit 1MB/s", "lend less"),
        ),
        "Without --swarm the command reads VOLUNTEER_SWARM, or takes the only swarm joined before. "
        "Pass an invite with a secret in a file or on stdin: everybody on this machine can see "
        "command lines.\n\n"
        "In a terminal it describes the swarm and its costs, asks once per swarm, starts the "
        "volunteer in the background and shows it. The volunteer keeps running when the screen or "
        "the terminal is closed.",
    ),
    "relay": Command(
        TAKE_PART,
        "Relay for members of a swarm that nobody can dial; computes nothing.",
        (
            ("relay --swarm x.swarm --listen-port 4001", "on a server, until Ctrl-C or SIGTERM"),
            ("relay --swarm x.swarm --relay 20Mbit/s", "lend less than 90 % of the upload"),
        ),
        "For somebody with a small server that others can dial. It needs about 150 MB of memory "
        "and little processor, starts no worker and holds no part of the model. What it costs is "
        "traffic: every byte comes in and goes out once; --relay, --upload-limit and --daily-quota "
        "bound it. It sees which members talk to each other, when and how much. It sees nothing "
        "of what they say: that is encrypted from end to end, and a relay that changes it, or "
        "takes a member's place, is refused.",
    ),
    "invite": Command(
        TAKE_PART,
        "Print a fresh invite with members that can be reached now.",
        (
            ("invite", "without a running volunteer: the members met last"),
            ("invite --qr", "with a QR code"),
            ("invite --once", "for one volunteer only, in a private swarm"),
            ("invite --out my-swarm.swarm", "also as a file"),
        ),
        "The invite is the only line on stdout. In a private swarm it contains a secret, and the "
        "volunteer that made it redeems it, so it has to run, and answers for whoever uses it.",
    ),
    "expel": Command(
        TAKE_PART,
        "Expel a member that you, or somebody you invited, let into the swarm.",
        (('expel 3FkQ7x --reason "sends noise"', "and everybody whom it has invited"),),
        "Only in swarms founded with --private: volunteer status members shows the tree.",
    ),
    "amend": Command(
        TAKE_PART,
        "Change the steps or the learning rate of the run that you founded.",
        (
            (
                "amend --learning-rate 3e-4",
                "from the first step that all members can reach with it",
            ),
            ("amend --learning-rate 1e-4 --schedule constant --from-step 5000", "later"),
            ("amend --steps 20000", "in all; also of a run that is complete"),
            ("amend --steps 20000 --schedule wsd", "more steps, with a fall in the last fifth"),
        ),
        "Only with the founder's key. It shows the rates before it asks; volunteer status says "
        "from which step on members have agreed that it holds.",
    ),
    "pause": Command(
        TAKE_PART,
        "Pause: free memory and GPU, stay in the swarm.",
        (
            ("pause", "until volunteer resume"),
            ("pause --for 2h", "resume automatically in two hours"),
            ('pause --until 18:00 --reason "a meeting"', "resume automatically at 18:00"),
        ),
    ),
    "resume": Command(TAKE_PART, "Resume after a pause.", (("resume", "now"),)),
    "finish": Command(
        TAKE_PART,
        "Leave the swarm: drain the stages, finish the step, save, say goodbye.",
        (
            ("finish", "leave, and wait until it is done"),
            ("finish --swarm my-swarm --yes", "do not ask, even if the swarm will have to wait"),
        ),
        "Ctrl-C or SIGTERM to volunteer join --headless does the same; a second one ends it.",
    ),
    "attach": Command(
        WATCH,
        "Show the volunteer that runs here.",
        (("attach", "the screen; d closes it"),),
        "One of another home: VOLUNTEER_HOME=HOME volunteer attach, as volunteer list has it. On "
        "another machine: ssh -t me@lab volunteer attach.",
    ),
    "status": Command(
        WATCH,
        "Show what the volunteer on this machine is doing.",
        (
            ("status", "once"),
            ("status --watch", "every second"),
            ("status --watch --plain", "a line per step, for screen readers and logs"),
            ("status peers", "who is near, and how far each is trusted; also stages, members"),
            ("status matches", "why this volunteer has its stages"),
            ("status leaderboard", "who contributed how much, as others counted it"),
            ("status --json | jq .loss", "for programs"),
        ),
    ),
    "list": Command(
        WATCH,
        "List all volunteers of this machine, also those of services and of other users.",
        (
            ("list", "swarm, stages, state, speed, memory, threads, device and home of each"),
            ("list --json | jq '.volunteers[].state'", "for programs"),
        ),
        "One of another home is reached with VOLUNTEER_HOME=HOME volunteer status. Of those that "
        "cannot be opened only the socket is known: root sees all.",
    ),
    "evidence": Command(
        WATCH,
        "Show, save and check the evidence by which members were expelled.",
        (
            ("evidence ls", "who was expelled in the only swarm known here, and why"),
            ("evidence save bad.bin", "a file for others"),
            ("evidence verify bad.bin", "on any machine; exit code 1 if it proves nothing"),
        ),
        nested=True,
    ),
    "logs": Command(
        WATCH,
        "Print the volunteer's log, whether it runs or not.",
        (
            ("logs -n 50", "the last 50 lines"),
            ("logs -f --level warning", "follow warnings and errors"),
            ("logs --since 18:00", "the lines since then"),
        ),
    ),
    "checkpoint": Command(
        USE,
        "List, verify and restore the checkpoints on this machine.",
        nested=True,
    ),
    "data": Command(
        USE,
        "Turn text into tokens to train on; list, verify and show them.",
        (
            ("data build books/ --tokenizer train:16384 --out tokens", "on all cores; resumable"),
            ("create --data tokens", "a swarm that trains on them"),
            ("data verify tokens", "read everything and check it"),
            ("data show 0 tokens", "the text of the first sample"),
        ),
        "A build reads text and .jsonl, both also as .gz or .zst, .parquet, and .bin files of "
        "llm.c and nanoGPT. One that was interrupted goes on where it was.",
        nested=True,
    ),
    "sample": Command(
        USE,
        "Write text with the model that a swarm has trained so far.",
        (("sample --help", "prompt, length, temperature"),),
    ),
    "chat": Command(
        USE,
        "Talk with the model that a swarm has trained so far.",
        (
            ("chat", "in the terminal; Ctrl-D ends"),
            ('chat --system "Answer briefly." --top-p 0.9', "where the tokenizer has a template"),
            ("chat --model model", "a folder of volunteer export: it starts sooner"),
            ("chat < questions.txt", "a line of text for each line"),
        ),
        "In a conversation /reset forgets what was said, /quit ends, and Ctrl-C stops an answer. "
        "A model whose tokenizer has no chat template continues your text. It needs transformers: "
        'pip install "volunteer[hf]".',
    ),
    "export": Command(
        USE,
        "Save the model in the layout that Hugging Face transformers loads, or for llama.cpp.",
        (
            ("export --out model", "the newest version"),
            ("export --out model --gguf --dtype bf16", "one file, for llama.cpp and ollama"),
        ),
        '--gguf needs the gguf package: pip install "volunteer[gguf]".',
    ),
    "eval": Command(
        USE,
        "Measure the newest model on a text.",
        (("eval --text book.txt", "perplexity and bits per byte"),),
        "For the tasks of lm_eval, export the model and run lm_eval on the folder (see the guide).",
    ),
    "doctor": Command(
        MACHINE,
        "Check that this machine can take part, and say what to do about each problem.",
        (
            ("doctor", "a line per check: ok, warn or fail"),
            ("doctor --bundle report.zip", "a file for a report, without secrets"),
        ),
        "The bundle contains these lines, versions, settings, the state of what runs and the end "
        "of the log. Look into it before you send it to anybody.",
    ),
    "config": Command(
        MACHINE,
        "Show or change the settings.",
        (
            ("config show --origin", "every setting and where it comes from"),
            ("config set upload_limit_bytes_per_s 2MB/s", "within seconds where a volunteer runs"),
            ("config show --config FILE", "check a file, and what it comes to"),
        ),
        "The first source that has a value wins: flag, VOLUNTEER_* variable, --config file, your "
        "file, the administrator's file, default.",
        nested=True,
    ),
    "service": Command(
        MACHINE,
        "Run as a service: install or remove it.",
        (
            ("service install --swarm x.swarm", "write the unit of this user; starts nothing"),
            ("service install --swarm x.swarm --start", "also start it, now and at every login"),
            ("service install --system --dry-run", "print the unit and what would be done"),
            (
                "service install --system --instance gpu1 --gpu 1 --swarm x.swarm",
                "one of several, each with its own swarm, home and graphics card",
            ),
            ("service uninstall --instance gpu1", "stops it; its home stays"),
        ),
        "--system makes it a service of the machine, which needs root. Installing prints the "
        "commands of systemctl or launchctl that start and stop it, and show its state and log.",
        nested=True,
    ),
    "cache": Command(
        MACHINE,
        "Show what is kept on disk, and free space.",
        (("cache ls", "by kind"), ("cache prune --dry-run", "what would be removed")),
        nested=True,
    ),
    "forget": Command(
        MACHINE,
        "Remove a swarm from this machine, with all that is kept of it.",
        (("forget my-swarm", "asks where checkpoints would be lost"),),
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
    "version": Command(
        MACHINE,
        "Print the versions that matter in a report.",
        note="To go to a newer one in a checkout: volunteer finish, git pull, make install, "
        "volunteer join. The home and what it has learned stay. Nothing asks the network whether "
        "there is one.",
    ),
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
        "Predict the throughput of given machines, and the best way to cut the model.",
        (
            ("plan --machines 4 --up 20Mbit/s --rtt-ms 60", "four like this one, on home lines"),
            (
                "plan --preset small --machines 16 --gflops 400 --up 50Mbit/s",
                "sixteen others",
            ),
            (
                "plan --swarm x.swarm --table machines.toml",
                "for a founded swarm",
            ),
            ("plan --machines 8 --tokens 1000000000", "how long so many tokens take"),
            ("plan --no-measure --json | jq .best", "for programs"),
        ),
        "A table lists groups of equal machines, each under [[machine]], with any of name, count, "
        "gflops (or tokens_per_s, training the whole model alone), memory, up, down and rtt_ms: "
        'count = 3, gflops = 400.0, memory = "16GB", up = "20Mbit/s". Values that are left out '
        "are measured on this machine. One with several devices has the speed of all and the "
        "memory of one, or of all where they share a stage.\n\n"
        "Stages have fewer than --redundancy replicas only if there are too few machines. Not "
        "counted: leaving and joining, second stages, checkpoints; nor that a machine whose memory "
        "just suffices for its stage computes parts of it twice, which takes up to a third longer.",
    ),
    "bench": Command(
        TRY, "Measure this machine: compute, memory, codec, loopback. Prints JSON.", laboratory=True
    ),
    "chaos": Command(
        TRY,
        "Inject faults into volunteers on this machine and report what each costs.",
        (
            ("chaos --quick", "a few faults"),
            ("chaos --minutes 10 --faults kill,stop", "these kinds, for ten minutes"),
            ("chaos --only kill@averaging,stage", "these faults only"),
        ),
        "Faults: kill, stop, worker (each at forward, backward, before-optimizer, "
        "after-optimizer, averaging, recovery, checkpoint), corrupt (at forward, backward, "
        "averaging), disk@checkpoint, partition, delay, slow, stage. The exit code is 1 if "
        "anything was lost that need not be.",
        laboratory=True,
    ),
}


def nested_app(name: str) -> App:
    """Return the app of a command that has commands of its own."""
    epilogue = COMMANDS[name].epilogue
    return App(name=name, default_parameter=PARAMETER, help_epilogue=epilogue)
