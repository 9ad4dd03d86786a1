"""The ``volunteer`` command: finds the command asked for, runs it, turns its end into an exit code.

Commands are named here as text and imported when called, so ``volunteer --help`` loads neither
torch nor libp2p nor Textual. A command returns an exit code or raises ``UserError``; everything
else that escapes is a fault of this program and becomes one line and a file with the traceback.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence

from cyclopts import App, Parameter

from client.cli.crash import save_traceback
from client.cli.output import say
from client.errors import ExitCode, UserError, first_of

HELP = (
    "Train one language model together with strangers. Every volunteer runs this program; there "
    "is no server. Found a swarm with create, take part in one with join, watch it with status, "
    "and use what it learned with sample and export."
)

EPILOGUE = (
    "Every command knows --help, and --debug, which shows tracebacks. Settings come from flags, "
    "then from VOLUNTEER_* variables, then from the configuration file.\n\n"
    "Exit codes: 0 ok, 1 failed, 2 usage, 3 not running, 69 swarm unreachable, 75 try again "
    "later, 77 refused, 78 configuration, 130 interrupted."
)

COMMANDS = {
    "create": "Found a swarm: write its signed .swarm file and print an invite.",
    "join": "Take part in a swarm's training until it is done or you stop.",
    "attach": "Show the volunteer that runs here, or on another machine through SSH.",
    "status": "Show what the volunteer on this machine is doing.",
    "finish": "Leave the swarm in order: hand over, close the step, save, say goodbye.",
    "matches": "Show who holds which stage with whose consent, and why.",
    "demo": "Train with four volunteers on this machine, kill one, show that nothing is lost.",
    "chaos": "Do faults to volunteers on this machine and report what they cost.",
    "checkpoint": "List, verify and restore the checkpoints on this machine.",
    "sample": "Write text with the model a swarm has trained so far.",
    "export": "Save the model in the layout that Hugging Face transformers loads.",
    "replay": "Play a recorded run in the terminal interface.",
    "simulate": "Simulate the matching of many volunteers and compare policies.",
    "bench": "Measure this machine: compute, memory, codec, loopback. Prints JSON.",
    "doctor": "Check that this machine can take part, and say what to mend.",
    "config": "Show, locate or check the configuration.",
    "identity": "Show or create this volunteer's identity.",
    "version": "Print the versions that matter in a report.",
}

EXAMPLES = {
    "replay": (
        "Examples: volunteer attach --record run.jsonl writes what it shows to a file; volunteer "
        "replay run.jsonl plays it, volunteer replay run.jsonl --speed 10 ten times as fast."
    ),
    "chaos": (
        "Examples: volunteer chaos --quick; volunteer chaos --minutes 10 --faults kill,stop; "
        "volunteer chaos --only kill@averaging,stage. Faults: kill, stop, worker (each at forward, "
        "backward, before-optimizer, after-optimizer, averaging, recovery, checkpoint), corrupt "
        "(at forward, backward, averaging), disk@checkpoint, partition, delay, slow, stage. Ends "
        "with 1 if anything was lost that need not be."
    ),
    "finish": (
        "Examples: volunteer finish leaves the swarm that runs here and waits until it has left. "
        "volunteer finish --swarm my-swarm --yes does not ask, even if the swarm will have to wait "
        "for another volunteer. Ctrl-C or SIGTERM to volunteer join do the same; twice, and it "
        "ends at once."
    ),
    "matches": (
        "Examples: volunteer matches --swarm my-swarm --watch shows our seats, every stage as we "
        "see it, and why we moved or stayed. volunteer matches --records checks the signatures of "
        "what was agreed, with or without a running volunteer; it ends with 1 if one is wrong."
    ),
}


def build_app() -> App:
    """Return the command line with every command registered by name only."""
    app = App(
        name="volunteer",
        help=HELP,
        help_epilogue=EPILOGUE,
        help_format="plaintext",
        version=_version,
        default_parameter=Parameter(negative=()),
        suppress_keyboard_interrupt=False,
        result_action="return_value",
    )
    for position, (name, summary) in enumerate(COMMANDS.items()):
        module = f"client.cli.{name}"
        target = "app" if name in ("config", "identity", "checkpoint") else name
        example = {"help_epilogue": f"{EXAMPLES[name]}\n\n{EPILOGUE}"} if name in EXAMPLES else {}
        app.command(f"{module}:{target}", name=name, help=summary, sort_key=position, **example)
    return app


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return the process's exit code."""
    tokens = [token for token in arguments if token != "--debug"]
    debug = len(tokens) != len(arguments)
    try:
        result = build_app()(tokens)
        sys.stdout.flush()
    except UserError as error:
        return _explain(error)
    except KeyboardInterrupt:
        return _interrupted()
    except BrokenPipeError:
        return _silence_stdout()
    except BaseExceptionGroup as group:
        # Nurseries wrap what escapes them; a user's mistake or wish is still just that.
        known = first_of(group, UserError)
        if known is not None:
            return _explain(known)
        if first_of(group, KeyboardInterrupt) is not None:
            return _interrupted()
        if debug or not isinstance(group, Exception):
            raise
        return _explain_crash(group)
    except Exception as error:
        if debug:
            raise
        return _explain_crash(error)
    return int(result or ExitCode.OK)


def main() -> None:
    """Entry point of the console script."""
    if not sys.warnoptions:
        warnings.simplefilter("ignore")  # warnings are for developers; users get sentences
    sys.exit(run(sys.argv[1:]))


def _version() -> str:
    from client.cli.version import software_version

    return software_version()


def _interrupted() -> int:
    say("volunteer: interrupted")
    return ExitCode.INTERRUPTED


def _explain(error: UserError) -> int:
    say(f"volunteer: {error}")
    if error.next_step:
        say(f"  {error.next_step}")
    return int(error.exit_code)


def _explain_crash(error: Exception) -> int:
    place = save_traceback(error)
    say(f"volunteer: internal error: {_one_line(error)}")
    say(f"  {place}; please report it")
    return ExitCode.RUNTIME


def _one_line(error: Exception) -> str:
    if isinstance(error, ExceptionGroup):
        return _one_line(error.exceptions[0])
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words[:200]}"


def _silence_stdout() -> int:
    """Whoever read our output has left; that is their right and no error."""
    sys.stdout = None
    return ExitCode.OK


if __name__ == "__main__":
    main()
