"""Entry of `rouse`: the commands, and where their failures end."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

import rouse
from rouse.cli import calling, deploying, dev, failures, functions, keys, life, mesh, secrets, tenants, usage, watching
from rouse.cli.state import State, common


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@common
def cli() -> None:
    """Rouse: models sleep in host memory and wake on a shared device when they are called.

    Exit codes: 0 done, 1 failed, 2 wrong usage, 3 mesh unreachable, 4 not found, 5 out of time.
    ROUSE_DEBUG=1 shows the traceback of a failure.
    """


for command in (
    mesh.up,
    mesh.status,
    deploying.deploy,
    dev.dev,
    functions.functions,
    functions.describe,
    life.traffic,
    life.rollback,
    life.sleep,
    life.wake,
    calling.infer,
    watching.logs,
    watching.trace,
    functions.delete,
    usage.usage,
    tenants.tenants,
    keys.keys,
    secrets.secrets,
    mesh.version,
):
    cli.add_command(command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command and leaves with its exit code."""
    # gRPC's core writes warnings of its own to standard error.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code."""
    state = State()
    try:
        result = cli.main(args=arguments, prog_name="rouse", standalone_mode=False, obj=state)
        return result if isinstance(result, int) else 0
    except click.exceptions.NoArgsIsHelpError as help_text:
        click.echo(help_text.format_message(), err=True)
        return failures.USAGE
    except click.ClickException as error:
        failures.show_usage(state, error)
        return failures.USAGE
    except (click.Abort, KeyboardInterrupt):
        state.err.print("interrupted")
        return failures.INTERRUPTED
    except BrokenPipeError:
        # Whoever read us has seen enough; what is buffered must not be flushed at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return failures.CLOSED_PIPE
    except rouse.RouseError as error:
        if debugging():
            raise
        failures.show(state, error)
        return failures.exit_code(error)
    except Exception as error:
        if debugging():
            raise
        failures.say(state, f"{type(error).__name__}: {error}", "set ROUSE_DEBUG=1 for the traceback, and report it")
        return failures.FAILED


def debugging() -> bool:
    return os.environ.get("ROUSE_DEBUG", "") not in ("", "0")


if __name__ == "__main__":
    main()
