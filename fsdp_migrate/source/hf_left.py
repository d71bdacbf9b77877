"""What is said of arguments of Hugging Face's Trainer that are left to a person, with what to write there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from fsdp_migrate.adapters.engine.claims import TRANSFORMERS
from fsdp_migrate.adapters.hf_versions import FORMER as _BECOMES
from fsdp_migrate.findings import listed
from fsdp_migrate.source.python.values import python_text
from fsdp_migrate.source.settings_in_python import SAID, convert_settings, in_sentences


if TYPE_CHECKING:
    from collections.abc import Container

    from fsdp_migrate.source.python.values import Values
    from fsdp_migrate.source.settings_in_python import Converted


_MEANT = (
    "Hugging Face's Trainer takes FSDP2 by fsdp_config={'version': 2, 'reshard_after_forward': True, ...} "
    "(False for shard_grad_op); a file that fsdp_config names is converted by "
    "`fsdp-migrate config FILE --from hf`."
)
_BY_VERSION = (
    f" transformers {TRANSFORMERS['version_read'].since} and newer read `version`, and "
    f"{TRANSFORMERS['state_dict_type_read'].since} and newer `state_dict_type`; older ones pass over it "
    "without a word."
)
UNKNOWN: Final = "`fsdp` is known only when this runs."
ELSEWHERE: Final = "these are arguments of the Trainer, which is made in another place"
BY_STARS: Final = "this dict is given to the Trainer's arguments by `**`, and stays as it is"
FORMER: Final = tuple(_BECOMES)
_GONE = (
    " transformers {} and newer stop at {}, no argument of theirs any more: take {} out of what is "
    "given here; in `fsdp_config` stands {}."
)


def of_former(source_text: str, given: Container[str]) -> str:
    """Return what to do of arguments that transformers took out, where they are given by these names.

    Args:
        source_text: The source: a class of it may have such an argument of its own, which stays.
        given: The names of the arguments.

    Example:
        >>> of_former("", ["fsdp", "bf16"])
        ''
        >>> "take it out of" in of_former("", ["fsdp", "fsdp_min_num_params"])
        True
    """
    gone = [
        name
        for name in FORMER
        if name in given and not re.search(rf"^[ \t]+{name}[ \t]*:", source_text, re.MULTILINE)
    ]
    if not gone:
        return ""
    what, new = (" and ".join(f"`{each}`" for each in names) for names in (gone, map(_BECOMES.get, gone)))
    whole = "it" if len(gone) == 1 else "them"
    return _GONE.format(TRANSFORMERS["wrap_arguments"].before, what, whole, new)


def left(converted: Converted, values: Values, reasons: tuple[str, ...]) -> str:
    """Return the comment for what is left to a person, with what to write as far as it is known."""
    before, after = converted.before, converted.after
    said = in_sentences(reasons)
    file = before.get("fsdp_config")
    if isinstance(file, str) and values.expression(file) is None and not converted.is_refused:
        words = "" if after["fsdp"] == before["fsdp"] else f" Here: fsdp={python_text(after['fsdp'])}."
        words += _of_the_word(_alone(converted, values))
        return f"{file} holds these settings: `fsdp-migrate config {file} --from hf --write`.{words}"
    if converted.is_refused:
        return said
    if reasons == (UNKNOWN,) and isinstance(file, str):
        return f"{said} {_MEANT}"
    if isinstance(file, str):  # an expression: what is added to it does not hang on what it holds
        done = _alone(converted, values)
        shown = values.pasted(python_text(done.after.get("fsdp_config")))
        return f"{said} {_MEANT} Here: add {shown} to it.{_of_the_word(done)}"
    here = f" Here: fsdp_config={values.pasted(python_text(after.get('fsdp_config')))}"
    if reasons == (UNKNOWN,):
        here += ", with False in place of True if `fsdp` says shard_grad_op"
    versions = _BY_VERSION if reasons and {ELSEWHERE, BY_STARS}.issuperset(reasons) else ""
    return f"{said} {_MEANT}{here}.{versions}{_changing(converted)}{_of_the_word(converted)}"


def _alone(converted: Converted, values: Values) -> Converted:
    """Convert what stands beside `fsdp_config`."""
    alone = {name: value for name, value in converted.before.items() if name != "fsdp_config"}
    return convert_settings("hf", alone, values)


def _of_the_word(converted: Converted) -> str:
    """Return what is to be done about `fsdp` itself beside the dict: for hybrid_shard, and for no_shard."""
    found = [each for each in converted.findings if each.subject == "fsdp" and each.code in SAID]
    return "".join(f" {each.code}: {each.message} {each.hint}" for each in found if each.hint)


def _changing(converted: Converted) -> str:
    """Name what has no place in the dict for FSDP2, or means something else there, with its code."""
    held = converted.before.get("fsdp_config")
    keys = {f"fsdp_config.{name}" for name in held} if isinstance(held, dict) else set()
    found = [each for each in converted.findings if each.subject in keys and each.code in SAID and each.hint]
    texts = dict.fromkeys(f"`{each.subject.partition('.')[2]}` ({each.code})" for each in found)
    return f" What changes: {listed(texts, 6)}." if texts else ""
