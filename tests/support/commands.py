"""The command line in the process of the tests: what it prints, for people and for machines, and refuses."""

import inspect
import json
import re

from unn.cli.main import main

TINY = [
    "--steps", "2", "--batch", "4", "--width", "8", "--depth", "2", "--heads", "2", "--sampling-steps", "2",
    "--quiet",
]  # fmt: skip


def tiny(options):
    """Small sizes for the engine that the options name."""
    if "--engine" not in options:
        return TINY
    common = ["--steps", "2", "--batch", "4", "--width", "8", "--depth", "2", "--quiet"]
    return common + ([] if "vaeac" in options else ["--heads", "2"])


def printed(capsys, *arguments):
    """What a command prints."""
    capsys.readouterr()
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    assert code == 0, err
    return out


def answered(capsys, *arguments):
    """What a command prints for machines."""

    def no(name):
        raise AssertionError(f"{name} is no JSON")

    return json.loads(printed(capsys, *arguments, "--json"), parse_constant=no)


def refused(capsys, *arguments):
    """What the command says on standard error; it exits with code 2 and prints nothing else."""
    capsys.readouterr()
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    assert code == 2 and not out, out
    assert err.startswith("unn: ") and err.count("\n") == 1 and "Traceback" not in err, err
    return err


def attribute_texts(config):
    """What ``--help`` says of each option of a configuration, by option."""
    attributes = inspect.getdoc(config).split("Attributes:")[1]
    for name, text in re.findall(r"^    (\w+): ((?:.|\n {8})+)", attributes, re.M):
        yield f"{config.__name__}.{name}", " ".join(text.split())
