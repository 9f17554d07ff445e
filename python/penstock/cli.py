"""The command line: ``penstock doctor``, ``bench``, ``inspect``, ``serve``, and so on.

Exit codes: 0 success; 1 failure; 2 wrong usage.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence

from .commands import Failed, bench, convert, doctor, inspect, online, report, serve, top, verify


def build_parser() -> argparse.ArgumentParser:
    """Every command adds its arguments and sets ``run``, which gets the parsed arguments."""
    parser = argparse.ArgumentParser(
        prog="penstock", description="Feeds training: batches made on all cores, without a copy."
    )
    parser.add_argument("--version", action="store_true", help="print the version and stop")
    commands = parser.add_subparsers(title="commands", metavar="command")
    doctor.add_to(commands)
    bench.add_to(commands)
    report.add_to(commands)
    inspect.add_to(commands)
    verify.add_to(commands)
    convert.add_to(commands)
    serve.add_to(commands)
    top.add_to(commands)
    online.add_to(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit code.

    Parameters
    ----------
    arguments : sequence of str, optional
        Without the program's name. None: the arguments of this process.
    """
    # File names that are not UTF-8 are printed byte by byte.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="surrogateescape")
    parser = build_parser()
    options = parser.parse_args(arguments)
    if options.version:
        from . import __version__

        print(f"penstock {__version__}")
        return 0
    if not hasattr(options, "run"):
        parser.print_help()
        return 2
    try:
        code: int = options.run(options)
    except Failed as failed:
        print(f"penstock: {failed}", file=sys.stderr)
        return failed.code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of the output closed its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code
