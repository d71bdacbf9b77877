"""A shell command with FSDP flags: ``--fsdp`` and ``--fsdp_config`` of HF Trainer, or ``accelerate launch``.

The flags become a document, which is converted like any other; what changes in it changes in the command.
Quotes, line continuations and every other word stay. Nothing is run, and no variable is expanded. What stands
before the name of the script is the launcher's, what stands behind it the script's.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from fsdp_migrate.adapters.accelerate import ACCELERATE_KEYS
from fsdp_migrate.adapters.conversion.assigned import with_assignment
from fsdp_migrate.adapters.conversion.branches import sure_place
from fsdp_migrate.adapters.conversion.environment import of_framework, told_by_environment
from fsdp_migrate.adapters.conversion.exported import as_command, with_exports, with_strategy
from fsdp_migrate.adapters.conversion.flag_documents import (
    BESIDE,
    HF_FORMER,
    accelerate_document,
    as_flags,
    hf_document,
)
from fsdp_migrate.adapters.conversion.flag_edits import edits_of
from fsdp_migrate.adapters.conversion.flags import Flag, read_flags
from fsdp_migrate.adapters.conversion.here_documents import escaping, opened, settings_written
from fsdp_migrate.adapters.conversion.line_ends import with_line_feeds, with_pieces
from fsdp_migrate.adapters.conversion.script_arguments import (
    decays_by_no_name,
    packs_weights,
    told_of_arguments,
)
from fsdp_migrate.adapters.conversion.script_notes import nothing_in_script
from fsdp_migrate.adapters.conversion.shell import is_printed, launch_of, number_of, value_of, words_of
from fsdp_migrate.adapters.conversion.text import BlockReport, TextConversion, convert_text
from fsdp_migrate.adapters.conversion.variables import Expanded, Piece, Script
from fsdp_migrate.adapters.conversion.written_configs import convert_written, with_writing_line
from fsdp_migrate.adapters.document.nodes import REFERENCE
from fsdp_migrate.adapters.engine.base import by_name as keys_by_name, elsewhere, read_number
from fsdp_migrate.adapters.engine.ownership import HF_WORDS
from fsdp_migrate.adapters.engine.rank0_loading import LOAD_ON_ALL, SENDS_NONE
from fsdp_migrate.adapters.engine.settings import Settings
from fsdp_migrate.adapters.hf_trainer import STRONG
from fsdp_migrate.errors import ConfigError, NothingToConvertError
from fsdp_migrate.findings import Finding, make_finding
from fsdp_migrate.words import bare_word


if TYPE_CHECKING:
    from collections.abc import Iterable


_HF_FLAGS = frozenset({"fsdp", "fsdp_config", *HF_FORMER})
_ACCELERATE_FLAGS = frozenset(
    {
        "use_fsdp",
        "config_file",
        "use_parallelism_config",
        *BESIDE,
        *(f"fsdp_{name}" for name in keys_by_name(ACCELERATE_KEYS)),
    }
)
_FILES = (".json", ".yaml", ".yml")
_FLAG = re.compile(r"--(?:use[-_])?fsdp\b|--fsdp[-_]")
_SHOWN = re.compile(r"(?:echo|printf)\b(?!.*--)[^|>]*\Z", re.DOTALL)
_NAMES_FSDP = re.compile(r"(?:\A|[_.])fsdp(?:\Z|[_.])")
BARE_SWITCH = (
    "HF Trainer takes `--fsdp` without a value from transformers 5.10 on, and that is FSDP2 already; older "
    "ones expect a value."
)


def convert_command(command: str, *, settings: Settings | None = None) -> TextConversion:
    """Turn the FSDP1 flags in a shell command into FSDP2's.

    Raises:
        NothingToConvertError: It has no FSDP flags.
        ConfigError: It cannot be read.

    Example:
        >>> command = "accelerate launch --use_fsdp --fsdp_sharding_strategy 2 x.py --lr 1"
        >>> print(convert_command(command).text.partition("--use_fsdp ")[2])
        --fsdp_reshard_after_forward false --fsdp_version 2 --fsdp_state_dict_type FULL_STATE_DICT x.py --lr 1
    """
    text = with_line_feeds(command)
    try:
        done = _changes_of(text, with_exports(settings or Settings(), text))
    except NothingToConvertError as error:
        return _of_another_shell(command, settings, error)
    return TextConversion(command, with_pieces(command, done.pieces), done.blocks, done.findings)


def _of_another_shell(
    command: str, settings: Settings | None, error: NothingToConvertError
) -> TextConversion:
    """Convert what a command hands to another shell as a text: ``sbatch --wrap '...'``."""
    if not error.names_fsdp:
        raise error
    try:
        done = convert_script(command, settings=settings)
    except NothingToConvertError:
        raise error from None
    said = (replace(each, subject=each.subject.removeprefix("line 1: ")) for each in done.findings)
    return replace(done, findings=tuple(said))


@dataclass(frozen=True, slots=True)
class _Changes:
    pieces: tuple[Piece, ...]
    blocks: tuple[BlockReport, ...]
    findings: tuple[Finding, ...]


def _changes_of(command: str, settings: Settings | None) -> _Changes:
    launch = launch_of(words_of(command))
    is_own = _has_own(command, settings)
    pieces: list[Piece] = []
    blocks: list[BlockReport] = []
    findings: list[Finding] = []
    for framework in ("accelerate",) if is_own else ("accelerate", "hf"):
        done = _converted(framework, command, launch.runner, settings)
        if done is not None:
            pieces += done.pieces
            blocks += done.blocks
            findings += done.findings
    if {"accelerate", "hf"} <= {block.framework for block in blocks}:
        findings = [each for each in findings if not _is_of_loading(each)]
    own = _own_flags(command, launch.runner, is_own=is_own)
    written = list(dict.fromkeys(_as_written(flag, command) for flag in own))
    if not blocks:
        why = "Expected `--fsdp` of HF Trainer, or flags such as `--fsdp_version` of `accelerate launch`."
        of_hf = [flag for flag in own if _is_unread_hf(flag, command, launch.runner)]
        if own and len(of_hf) == len(own):
            why = " ".join(_text_of_unread(flag, command) for flag in of_hf)
        elif own:
            listed = ", ".join(f"`{name}`" for name in sorted(written))
            why = f"{listed} must be the script's own. `fsdp-migrate scan` tells what it does with them."
            if any(_is_switch(flag) for flag in own) and not is_own:
                why += f" {BARE_SWITCH}"
        elif _FLAG.search(command):
            msg = (
                "The FSDP flags of the command stand within quotes or in a variable, which is not looked "
                "into: give what stands there alone, with `--command`."
            )
            raise NothingToConvertError(msg, names_fsdp=True)
        msg = f"The command has no FSDP flags of HF Trainer or of `accelerate launch`: {why}"
        raise NothingToConvertError(msg, names_fsdp=_FLAG.search(command) is not None)
    text_of_own = "A flag of the script's own: left as it is. `fsdp-migrate scan` tells what the script does."
    switches = {_as_written(flag, command) for flag in own if _is_switch(flag) and not is_own}
    ignored = {
        _as_written(flag, command): _text_of_unread(flag, command)
        for flag in own
        if _is_unread_hf(flag, command, launch.runner)
    }
    findings += [
        make_finding("FM351", name, ignored[name])
        if name in ignored
        else make_finding("FM345", name, f"{text_of_own} {BARE_SWITCH}" if name in switches else text_of_own)
        for name in written
    ]
    return _Changes(tuple(pieces), tuple(blocks), tuple(findings))


def _is_of_loading(finding: Finding) -> bool:
    """Tell whether it is of what the launcher sets for who loads, which HF Trainer's arguments set anew."""
    return "fsdp_cpu_ram_efficient_loading" in f"{finding.subject} {finding.message}"


def convert_script(text: str, *, settings: Settings | None = None) -> TextConversion:
    r"""Turn the FSDP1 flags in every command of a shell script into FSDP2's.

    Raises:
        NothingToConvertError: No command in it has FSDP flags, or starts what reads FSDP settings.

    Example:
        >>> script = "set -e\naccelerate launch --use_fsdp --fsdp_state_dict_type FULL_STATE_DICT x.py\n"
        >>> [(block.path, block.state) for block in convert_script(script).blocks]
        [('line 2', 'converted')]
    """
    source, text = text, with_line_feeds(text)
    whole, text = text, opened(text)
    script = Script(text)
    done = _Script(text, settings, escaping(whole))
    for start, end in script.others():
        if _SHOWN.match(text[start:end]):  # a command in a variable that is printed is not run by that
            continue
        for one in script.variants(start, end):
            done.take(start, one, is_shown=is_printed(text, start, end))
    for start, end, given in script.unused():
        done.take(start, script.content(given) if given.is_quoted else script.whole(start, end))
    blocks, findings = done.blocks, done.findings
    is_hf = bool(blocks) and all(block.framework == "hf" for block in blocks)
    told, by_environment = told_by_environment(text, settings, beside_hf=is_hf)
    blocks, findings = [*blocks, *told], [*findings, *of_framework(by_environment, blocks)]
    written = convert_written(whole, settings)
    blocks, findings = [*blocks, *written.blocks], written.beside(findings)
    if not blocks:
        raise nothing_in_script(whole, findings)
    if inner := settings_written(whole, written.lines):
        findings.append(make_finding("FM356", "here-document", inner))
    said = tuple(with_writing_line(each, text) for each in findings)
    pieces = [*done.pieces, *written.pieces]
    return TextConversion(source, with_pieces(source, pieces), tuple(blocks), said)


def settings_in_script(text: str, settings: Settings | None = None) -> list[str]:
    r"""Return what the FSDP flags of each command in a shell script stand for, as JSON; each text once.

    Example:
        >>> settings_in_script("accelerate launch --use_fsdp --fsdp_offload_params true x.py\n")
        ['{"distributed_type": "FSDP", "fsdp_config": {"fsdp_offload_params": "true"}}']
    """
    text = opened(with_line_feeds(text))
    script = Script(text)
    commands = (one.text for start, end in script.others() for one in script.variants(start, end))
    found: dict[str, None] = {}
    given = with_exports(settings or Settings(), text)
    for command in commands:
        if not _FLAG.search(command):
            continue
        runner = launch_of(words_of(command)).runner
        for framework in ("accelerate",) if _has_own(command, given) else ("accelerate", "hf"):
            flags = {flag.name: flag for flag in _flags_of_tool(framework, command, runner)}
            document = _document(framework, flags)
            if framework == "hf" and document is not None:
                document["fsdp"] = with_strategy(document["fsdp"], given.environment)
            if framework == runner == "accelerate" and "use_fsdp" in flags and "config_file" not in flags:
                document = accelerate_document(flags)  # without others: Accelerate's defaults
            if document is not None:
                found[json.dumps(document)] = None
    return list(found)


class _Script:
    """What became of the commands of a script until now."""

    def __init__(self, text: str, settings: Settings | None, escaping: list[tuple[int, int]]) -> None:
        self.text = text
        self.escaping = escaping
        self.settings = replace(
            with_exports(settings or Settings(), text),
            number=partial(number_of, text=text),
            value=partial(value_of, text=text),
        )
        self.pieces: set[Piece] = set()
        self.blocks: list[BlockReport] = []
        self.findings: list[Finding] = []

    def take(self, start: int, command: Expanded, *, is_shown: bool = False) -> None:
        """Convert one command that starts at a place of the script, with what its variables hold.

        Of one that is only shown nothing is said where it cannot be converted: it may be a help text.
        """
        if not _FLAG.search(command.text) and "--config" not in command.text:
            return
        place = f"line {self.text.count(chr(10), 0, start) + 1}"
        try:
            done = _changes_of(command.text, self.settings)
            pieces = self._placed(command, done.pieces)
        except ConfigError as error:
            if _FLAG.search(command.text) and not is_shown:
                hint = "Convert it by hand, or a command that has its flags with `--command`."
                self.findings.append(make_finding("FM355", place, f"Left as it is. {error}", hint))
            return
        self.pieces |= pieces
        blocks = (replace(block, path=place) for block in done.blocks)
        findings = (
            replace(with_assignment(finding, self.text, self.settings), subject=f"{place}: {finding.subject}")
            for finding in done.findings
        )
        # What a command's variables may hold does not change all that is said of it.
        self.blocks += [block for block in blocks if block not in self.blocks]
        self.findings += [finding for finding in findings if finding not in self.findings]

    def _placed(self, command: Expanded, pieces: Iterable[Piece]) -> set[Piece]:
        """Return changes of a command as changes of the script.

        Raises:
            ConfigError: One cannot be made where it would have to stand.
        """
        found = set()
        for piece in pieces:
            placed = command.placed(sure_place(command, piece))
            if (
                placed is None
                or any(placed != other and _collide(placed, other) for other in self.pieces)
                or ("$" in piece.new and any(start <= placed.start <= end for start, end in self.escaping))
            ):
                raise ConfigError(_where_it_stands(command, with_pieces(command.text, pieces)))
            found.add(placed)
        return found


def _where_it_stands(command: Expanded, changed: str) -> str:
    """Say what a command becomes that cannot be changed where it stands."""
    inner = command.inner_of(changed)
    if inner is not None:
        return (
            "Its flags stand within quotes, or in a variable that others use, where they cannot be changed. "
            f"The command for the other shell becomes `{' '.join(inner.split())}`."
        )
    return (
        "Its flags stand within quotes, or in a variable that others use, where they cannot be changed. With "
        f"the variables' contents it becomes `{_as_typed(changed)}`."
    )


def _as_typed(command: str) -> str:
    """Return a command in one line, without the shell that ran it as one text of it."""
    bare = re.sub(r"\b(?:eval|(?:ba|z|da)?sh\s+-\w*c)\s+", "", command.replace("\\\n", " "), count=1)
    return " ".join(bare.split())


def _collide(one: Piece, other: Piece) -> bool:
    """Tell whether two changes are of the same characters, or add at the same place."""
    return one[:2] == other[:2] or (one.start < other.end and other.start < one.end)


def _converted(framework: str, command: str, runner: str, settings: Settings | None) -> _Changes | None:
    """Convert the flags of one framework in a command; None where it has none of FSDP's."""
    flags = {flag.name: flag for flag in _flags_of_tool(framework, command, runner)}
    before = _document(framework, flags, settings)
    if before is None:
        told = framework == runner == "accelerate" and {"use_fsdp", "config_file"} & set(flags)
        return _told(command, flags, settings or Settings()) if told else None
    flagged = as_command(settings or Settings(), flags, is_launched=runner == "accelerate")
    if framework == runner == "accelerate" and decays_by_no_name(_of_script(command)):
        flagged = replace(flagged, decays_alike=lambda: True)
    if framework == runner == "accelerate":
        flagged = replace(flagged, is_packed=_packs(command, flagged))
    done = convert_text(json.dumps(before), framework=framework, is_json=True, settings=flagged)
    said = done.findings
    if framework == runner == "accelerate" and any(block.state == "converted" for block in done.blocks):
        said = (*(f for f in said if f.code != "FM354"), *told_of_arguments(_of_script(command), flags))
    if not done.is_changed:
        # What converts a mapping of a file, by `--key`, converts no command.
        findings = tuple(replace(f, hint=None) if f.code == "FM351" else f for f in said)
        return _Changes((), done.blocks, findings)
    old, new = (as_flags(framework, json.loads(text)) for text in (json.dumps(before), done.text))
    pieces = edits_of(command, flags, old, new)
    if all(command[each.start : each.end].lower() == each.new for each in pieces) and framework == runner:
        # Another way to write `False`: the file that it names says the rest.
        return _Changes((), tuple(replace(each, state="unchanged") for each in done.blocks), said)
    return _Changes(pieces, done.blocks, said)


def _document(
    framework: str, flags: dict[str, Flag], settings: Settings | None = None
) -> dict[str, Any] | None:
    """Return what the flags of a framework stand for; None where they have no FSDP settings."""
    if framework == "hf":
        return hf_document(flags) if _is_hf(flags) else None
    named = {name for name in flags if name.startswith("fsdp_")}
    number = settings.number if settings is not None else None
    return accelerate_document(flags, number) if _ACCELERATE_FLAGS & named else None


def _told(command: str, flags: dict[str, Flag], settings: Settings) -> _Changes:
    """Say where the settings stand of a command that has none itself."""
    given = flags.get("config_file")
    said = tuple(told_of_arguments(_of_script(command), flags))
    if _packs(command, settings):
        key = "fsdp_cpu_ram_efficient_loading"
        in_file = f"Where the file says `{key}: true`, or nothing of it"
        text = f"{in_file if given else f'Without `--{key} false`'}, {SENDS_NONE}"
        said = (*said, make_finding("FM343", "--config_file" if given else "--use_fsdp", text, LOAD_ON_ALL))
    if given is None:
        done = convert_text(json.dumps({"distributed_type": "FSDP"}), framework="accelerate", is_json=True)
        new = as_flags("accelerate", json.loads(done.text))
        return _Changes(edits_of(command, flags, {}, new), done.blocks, (*done.findings, *said))
    if given.value is None:
        return _Changes((), (), said)  # `--config_file <(cat ...)`: no file has its name
    text = f"{given.value} is another file, which is not converted with this one."
    names = ("num_machines", "num_processes")
    nodes, ranks = (flags[name].value if name in flags else None for name in names)
    read = settings.number or read_number
    shown = [(read(value) if value else None) or "N" for value in (nodes, ranks)]
    # These override the file's, from which HYBRID_SHARD has its mesh.
    options = "" if nodes is None or shown[0] == 1 else f" --nodes {shown[0]} --world-size {shown[1]}"
    hint = f"`fsdp-migrate config {given.value} --from accelerate{options}`, if it has FSDP settings."
    finding = make_finding(*elsewhere(str(given.value), settings, "--config_file", text, hint))
    state = "fsdp2" if finding.code == "FM347" else "unchanged"
    block = BlockReport("accelerate", "--config_file", state)
    return _Changes((), (block,), (finding, *(said if state == "unchanged" else ())))


def _packs(command: str, settings: Settings) -> bool:
    return packs_weights(command, _flags_of_tool("hf", command, "accelerate"), settings)


def _of_script(command: str) -> dict[str, Flag]:
    """Return the flags behind the script of ``accelerate launch``; none where they set FSDP too."""
    found = {flag.name: flag for flag in _flags_of_tool("hf", command, "accelerate")}
    return {} if _is_hf(found) else found


def _flags_of_tool(framework: str, command: str, runner: str) -> list[Flag]:
    """Return the flags that are one framework's: before the script Accelerate's, behind it the script's."""
    flags = read_flags(command)
    script_at = launch_of(words_of(command)).script_at
    is_accelerate = framework == "accelerate"
    if is_accelerate and not runner and _is_hf({flag.name: flag for flag in flags}):
        return []  # such as an array of the arguments for HF Trainer's script
    # Behind another runner, or none, `--fsdp_*` are flags of the script's own.
    if runner != "accelerate" and is_accelerate and (runner or script_at is not None):
        return []
    if script_at is not None and runner == "accelerate":
        return [flag for flag in flags if (flag.start < script_at) is is_accelerate]
    if is_accelerate and not runner and script_at is None and _are_a_scripts(flags):
        return []
    return [flag for flag in flags if not is_accelerate or flag.name in _ACCELERATE_FLAGS]


def _are_a_scripts(flags: list[Flag]) -> bool:
    """Tell of flags alone, such as a list, whether they are a script's: Accelerate has no such flag."""
    names = {flag.name for flag in flags}
    own = {name for name in names if _NAMES_FSDP.search(name)} - _ACCELERATE_FLAGS
    return bool(own) and "use_fsdp" not in names


def _is_hf(flags: dict[str, Flag]) -> bool:
    """Tell whether ``--fsdp`` is HF Trainer's: by what it says, or by other flags of the Trainer."""
    if "fsdp" not in flags:
        return False
    value = flags["fsdp"].value
    if value is None and not _names_settings(flags):
        return False
    words = {bare_word(word) for word in (value or "").replace(",", " ").split()}
    is_told = bool(words & HF_WORDS) or (
        value is not None and (REFERENCE.search(value) or value.endswith(_FILES))
    )
    return bool(is_told or _names_settings(flags) or STRONG & set(flags))


def _names_settings(flags: dict[str, Flag]) -> bool:
    """Tell whether ``--fsdp_config`` has what HF Trainer reads: JSON, or what can be the name of a file."""
    config = flags.get("fsdp_config")
    value = (config.value if config is not None else None) or ""
    return bool(
        value.endswith(_FILES) or "/" in value or value.lstrip().startswith("{") or REFERENCE.search(value)
    )


def _has_own(command: str, settings: Settings | None) -> bool:
    """Tell whether the script that a command starts has ``--fsdp`` for an argument of its own."""
    words = words_of(command)
    at = launch_of(words).script_at
    given = [word.value for word in words if at is not None and word.start >= at][:2]
    if given and given[0] in {"-m", "--module"}:
        given = [f"{name.replace('.', '/')}.py" for name in given[1:]]
    return bool(settings and given and settings.is_own(given[0]))


def _own_flags(command: str, runner: str, *, is_own: bool) -> list[Flag]:
    """Return the FSDP flags of a command that are neither HF Trainer's nor Accelerate's."""
    taken = {
        flag.start
        for flag in _flags_of_tool("accelerate", command, runner)
        if flag.name in _ACCELERATE_FLAGS or flag.name.startswith("fsdp_")
    }
    of_script = _flags_of_tool("hf", command, runner)
    if not is_own and _is_hf({flag.name: flag for flag in of_script}):
        taken |= {flag.start for flag in of_script if flag.name in _HF_FLAGS}
    named = (flag for flag in read_flags(command) if _NAMES_FSDP.search(flag.name))
    return [flag for flag in named if flag.start not in taken]


def _is_unread_hf(flag: Flag, command: str, runner: str) -> bool:
    """Tell whether a flag is HF Trainer's by the flags around it, and not read for want of ``--fsdp``."""
    around = {one.name for one in _flags_of_tool("hf", command, runner)}
    return flag.name in _HF_FLAGS - {"fsdp"} and "fsdp" not in around and bool(STRONG & around)


def _text_of_unread(flag: Flag, command: str) -> str:
    name = _as_written(flag, command)
    if flag.name != "fsdp_config":
        return (
            f"{name}: an HF Trainer reads it only beside `--fsdp`, and what another script does with it "
            "`fsdp-migrate scan` tells. It is left as it is."
        )
    return (
        f"{name} is HF Trainer's, which without `--fsdp` reads at most `xla`, and `activation_checkpointing` "
        f"where Accelerate runs FSDP: left as it is. If code sets `fsdp`, convert {flag.value} with "
        "`--from hf`."
    )


def _is_switch(flag: Flag) -> bool:
    return flag.name == "fsdp" and flag.value is None


def _as_written(flag: Flag, command: str) -> str:
    return command[flag.start : flag.end].replace("=", " ").split()[0]
