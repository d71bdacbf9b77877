"""What to say of a document in which no FSDP settings are known: whose they are, and what converts them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from fsdp_migrate import words
from fsdp_migrate.adapters.conversion.foreign import FOREIGN, foreign_of
from fsdp_migrate.adapters.conversion.here_documents import settings_written
from fsdp_migrate.adapters.conversion.plugins import told_of_plugins
from fsdp_migrate.adapters.conversion.shell import in_folder_of
from fsdp_migrate.adapters.document.nodes import (
    Alias,
    Mapping,
    Node,
    Reference,
    Sequence,
    effective,
    key_text,
    plain,
    target,
)
from fsdp_migrate.adapters.engine.accelerate_switch import SWITCH, may_switch_on
from fsdp_migrate.adapters.engine.base import mappings_of, plain_values
from fsdp_migrate.adapters.torch_kwargs import TORCH_KEYS
from fsdp_migrate.errors import ConfigError, NothingToConvertError
from fsdp_migrate.findings import named


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence as Many

    from fsdp_migrate.adapters.engine.base import Block


FILE = "FILE"
"""Stands for the file in commands that are shown; who knows its name puts it there."""
# Settings of so many keys have a number or a switch among them.
_MOST_SETTINGS = 20
_WORDS = 3
_FSDP = re.compile(r"fsdp|fully_?sharded", re.IGNORECASE)
_OFF = frozenset({"", "false", "no", "off", "none", "null", "0"})
_SWITCHES = frozenset({"fsdp", "use_fsdp", "enable_fsdp", "is_fsdp", "accelerate_use_fsdp"})
_OF_LOADING = "FSDP_CPU_RAM_EFFICIENT_LOADING"
_ARGUMENTS = frozenset(key.name for key in TORCH_KEYS)
_RECORDED = frozenset({"args", "codePath", "program", "startedAt"})
"""Keys of W&B's `wandb-metadata.json`, which has the command of a run."""
_FLAG = re.compile(r"--(?:use[-_])?fsdp(?:[-_]\w+)*(?![\w.-])")
_ARGUMENT_FLAG = re.compile(
    r"--(?:sharding_strategy|backward_prefetch|limit_all_gathers|use_orig_params|sync_module_states)\b"
    r"|--(?:[\w-]+\.)*fsdp(?:_config)?(?:\.[\w-]+)+"
)
_MOST_SHOWN = 60
_HYDRA_GROUP = re.compile(r"(?:\A|\.)defaults\.\d+\.(?:override )?/?(?P<group>[\w/-]+)(?:@[\w.]+)?\Z")
_OF_DEFAULTS = re.compile(r"(?:\A|\.)defaults\.\d+\b")
_ANYONES = frozenset({"ulysses_sequence_parallel_size"})
_NAMED_FILE = re.compile(
    r"(?:--config_file[ =]\"?|(?<![\w./${}-])(?=[\w./${}-]*(?i:fsdp)))((?!-)[\w./${}-]+\.(?:json|ya?ml))\b",
)
_DATA = re.compile(r"(?:\A|/)(?:vocab|tokenizer|dataset|special_tokens)[\w-]*\.json\Z")
_STAND_IN = re.compile(r"\$\{\w+:?[-=]([^{}]*)\}")
_FAIRSCALE = re.compile(r"(?:\A|\.)(?:ddp_fully_sharded|DDPFullyShardedStrategy)\Z")
_CHOSEN = ": what that chooses stands in another file or in the sources, where `fsdp-migrate scan` looks."
_IDLE = re.compile(r"#|echo\b|printf\b")
_LABEL = re.compile(
    r"comment|\Anotes?\Z|\Afile_?name\Z|(?:run|project|experiment|exp|wandb|job|group)_?name\Z|_dir\Z|_project\Z"
)
_NAMED = frozenset({"logger", "loggers", "run", "experiment", "project", "wandb"})
_LABELS = frozenset({"app", "image", "run_name", "job_name", "experiment_name", "title", "description"})


def _shows_surely(documents: Many[Node]) -> bool:
    """Tell whether more shows a framework than one key, which projects of others have too."""
    names = {name for document in documents for _, each in mappings_of(document) for name in effective(each)}
    keys = {key for found in FOREIGN for key in (*found.keys, *found.together)}
    return bool(names & (keys - _ANYONES)) or not names & _ANYONES


def off_paths(documents: Many[Node]) -> list[str]:
    """Return the keys that switch FSDP off, where nothing else in the documents names it; or none."""
    found = [(path, value) for document in documents for path, value in _fsdp_like(document)]
    if not found:
        return _off_arguments(documents)
    switches = [
        (path, value)
        for path, value in found
        if _is_switch(path) or (_is_config(path) and value in ([], None))
    ]
    off = [path for path, value in switches if _is_off(value)]
    return off if off and len(off) == len(switches) else []


def _off_arguments(documents: Many[Node]) -> list[str]:
    """Return the keys that switch off mappings of FSDP1's arguments, if all such mappings are off."""
    given = [
        (path, plain_values(mapping))
        for document in documents
        for path, mapping in mappings_of(document)
        if "sharding_strategy" in effective(mapping) and len(_ARGUMENTS & set(effective(mapping))) >= 2
    ]
    off = [
        ".".join((*path, name))
        for path, values in given
        for name in ("enabled", "enable")
        if name in values and _is_off(values[name])
    ]
    return off if len(off) == len(given) else []


def _is_switch(path: str) -> bool:
    return path.rpartition(".")[2].lower().replace("-", "_") in _SWITCHES


def _is_own_switch(path: str, value: Any) -> bool:
    """Tell whether a key is a switch that code reads, or a variable that says the same to FSDP2."""
    is_same = path.rpartition(".")[2] == _OF_LOADING and str(value).lower() in {"0", "1", "false", "true"}
    return is_same or (_is_switch(path) and isinstance(value, bool))


def _is_config(path: str) -> bool:
    return path.rpartition(".")[2] == "fsdp_config"


def _is_off(value: Any) -> bool:
    if isinstance(value, dict):
        return not value or any(_is_off(value.get(name, True)) for name in ("enabled", "enable", "use"))
    return value == [] or str("" if value is None else value).strip().lower() in _OFF


def nothing_found(
    documents: list[Node],
    whose: str,
    key: str | None,
    uncertain: list[tuple[Block, str]],
    converts: Callable[[str], bool],
) -> ConfigError:
    """Return the error that says why nothing was converted, and what to do about it.

    Args:
        documents: What was read.
        whose: The framework that was asked for, in words, or nothing.
        key: The path that was asked for.
        uncertain: What may be a framework's, with the framework's title.
        converts: Tells of the path of a mapping whether it converts as torch's own arguments.
    """
    if key is not None:
        paths = sorted(
            {".".join(path) for document in documents for path, _ in mappings_of(document) if path}
        )
        return ConfigError(f"There is no mapping at `{key}`.{words.closest(key, paths)}", field=key)
    like = [found for document in documents for found in _fsdp_like(document)]
    seen = list(dict.fromkeys(path for path, _ in like))
    # From what is surest to what only looks alike: a record of W&B, another framework's settings, what may be
    # ours, arguments of torch, and words.
    if others := _of_no_run(documents, like):
        return NothingToConvertError(f"{others} There is nothing to convert.", names_fsdp=False)
    foreign = next((found for found in map(foreign_of, documents) if found), None)
    by_value = _values_naming(documents) if foreign and not seen else []
    if foreign and (seen or by_value):
        whose = f"{foreign.title} ({named(seen or by_value, 3)}), whose settings are its own"
        msg = f"It configures FSDP for {whose}: {foreign.says}."
        return NothingToConvertError(f"{msg} There is nothing to convert.", names_fsdp=True)
    of_plugin = told_of_plugins(documents)
    commands = [of_plugin] if of_plugin else list(_of_torch(documents, converts))
    of_torch = of_plugin or (
        f"Arguments of FullyShardedDataParallel for code of its own: {' or '.join(commands)}. Leave them "
        "where a rewritten source reads them: prepare_fully_shard takes FSDP1's arguments."
    )
    if uncertain:
        msg = " ".join([_uncertain(uncertain), *([of_torch] if commands else [])])
        return NothingToConvertError(msg, names_fsdp=True)
    if not seen and not commands:
        return _only_in_values(documents, whose)
    msg = f"Nothing in it configures FSDP1{whose} in a way that is known here."
    if any(path.endswith(SWITCH) for path in seen):  # what Accelerate makes of that is known
        msg = f"The environment that it sets configures FSDP: {named(seen, 6)}."
        return NothingToConvertError(msg, names_fsdp=True)
    if seen:
        msg += f" What names FSDP is {named(seen, 6)}."
    msg += f" {of_torch if commands else _what_to_do(like)}"
    is_switch = not commands and all(_is_own_switch(path, value) for path, value in like)
    return NothingToConvertError(msg, names_fsdp=True, holds_arguments=bool(commands), is_switch=is_switch)


def _what_to_do(like: list[tuple[str, Any]]) -> str:
    """Say what may be done with keys that name FSDP, of which no framework is known."""
    inner = [each for path, value in like for each in _holders(path, value) if each != path]
    if inner:
        said = f"The settings of FSDP stand in {named(inner, 3)}: where a framework is given that, name it by"
        return f"{said} `--key`, and the framework by `--from`."
    if any(isinstance(value, dict) for _, value in like):
        said = "If one of them is a mapping of FSDP settings, name it by `--key`, and its framework by"
        return f"{said} `--from`."
    return "What code of its own makes of that, `fsdp-migrate scan` tells."


def _holders(path: str, value: Any) -> Iterator[str]:
    """Yield the paths of the mappings, this one or below it, that have ``fsdp_...`` settings themselves."""
    if not isinstance(value, dict):
        return
    if any(str(name).startswith("fsdp_") and not isinstance(held, dict) for name, held in value.items()):
        yield path
    else:
        for name, held in value.items():
            yield from _holders(f"{path}.{name}", held)


def _of_torch(documents: list[Node], converts: Callable[[str], bool]) -> Iterator[str]:
    """Yield the commands that convert what may be arguments of torch."""
    for path in argument_paths(documents):
        if converts(path or "."):
            yield f"`fsdp-migrate config {FILE} --from torch --key {path or '.'}`"


def _of_no_run(documents: list[Node], like: list[tuple[str, Any]]) -> str:
    """Return what documents are that no run reads, though keys in them name FSDP."""
    mappings = [set(effective(document)) for document in documents if isinstance(document, Mapping)]
    if (like and all("_wandb" in names for names in mappings)) or any(n >= _RECORDED for n in mappings):
        return "It is what W&B recorded of a run, which no framework reads."
    if like and all(_is_a_sentence(value) for _, value in like) and all(map(_holds_texts_alone, documents)):
        return "It holds texts that are shown to people, of FSDP among others."
    return ""


def _is_a_sentence(value: Any) -> bool:
    """Tell whether a value is read by people: of several words, and no command."""
    is_text = isinstance(value, str) and value.count(" ") >= _WORDS and not _FLAG.search(value)
    return is_text and " --" not in value and re.search(r"[^\W\d_][.,:!?)]*(?:\s|\Z)", value) is not None


def _holds_texts_alone(document: Node) -> bool:
    """Tell whether a document is many texts by their names, as a user interface has them in each language."""
    values = plain(document)
    leaves = [values]
    while any(isinstance(each, dict) for each in leaves):
        leaves = [v for each in leaves for v in (each.values() if isinstance(each, dict) else (each,))]
    return len(leaves) >= _MOST_SETTINGS and all(isinstance(each, (Reference, str)) for each in leaves)


def _switches_off(value: str) -> bool:
    return value.startswith(f"{SWITCH}=") and not may_switch_on(value.partition("=")[2])


def _only_in_values(documents: list[Node], whose: str) -> NothingToConvertError:
    """Say of documents without an FSDP key where their values name FSDP, a command's flags first."""
    found = [(path, value) for document in documents for path, value in _texts(plain(document))]
    flags = {flag: path for path, value in found for flag in _FLAG.findall(value)}
    if flags:
        places = ", ".join(f"`{flag}` in `{path}`" for flag, path in list(flags.items())[:3])
        msg = (
            f"No key in it configures FSDP{whose}, but the command in it does: {places}. Give that command, "
            f"in one line, to `fsdp-migrate config --command`, and the files that it names to "
            f"`fsdp-migrate config`."
        )
        return NothingToConvertError(msg, names_fsdp=True)
    own = {flag: path for path, value in found for flag in _ARGUMENT_FLAG.findall(value)}
    if own:
        places = ", ".join(f"`{flag}` in `{path}`" for flag, path in list(own.items())[:3])
        msg = (
            f"No key in it configures FSDP{whose}. What does is a script's own: {places}. "
            f"`fsdp-migrate scan` tells what the script does with that."
        )
        return NothingToConvertError(msg, names_fsdp=True)
    written = [f"In `{path}`: {said}" for path, value in found if (said := settings_written(value))]
    if written:
        msg = f"No key in it configures FSDP{whose}, but a script in it writes a file that does."
        return NothingToConvertError(" ".join([msg, *written]), names_fsdp=True)
    msg = f"Nothing in it configures FSDP{whose}: there is nothing to convert."
    off = [path for path, value in found if _switches_off(value)]
    if off:
        msg += f" {named(off)} switches FSDP off."
    named_in = [
        (path, line)
        for path, value in found
        if path not in off and not _is_label(path, value)
        for line in _telling(value)
    ]
    fairscales = next((f"{path}: {v}" for path, v in found if _FAIRSCALE.search(v)), None)
    if fairscales:
        msg += f" `{fairscales}` of Lightning before 2.0 is fairscale's FSDP, not torch's."
        return NothingToConvertError(msg, names_fsdp=False)
    starts = {re.split(r"[.=]", value)[0] for _, value in named_in}
    foreign = next((f for f in FOREIGN if starts & set(f.keys)), None)
    if foreign:
        whose = f"{foreign.title}, whose settings are its own: {foreign.says}"
        msg = f"A command in it configures FSDP for {whose}. There is nothing to convert."
        return NothingToConvertError(msg, names_fsdp=True)
    if named_in:
        shown = (value if len(value) <= _MOST_SHOWN else f"{value[:_MOST_SHOWN]}..." for _, value in named_in)
        places = ", ".join(
            f"`{path}: {text}`" for (path, _), text in zip(named_in[:3], shown, strict=False)
        ).replace("\n", " ")
        if any(text.startswith(SWITCH) for _, text in named_in):
            msg = f"No key in it configures FSDP{whose}, but the environment that it sets does: {places}."
            return NothingToConvertError(msg, names_fsdp=True)
        of_hydra = [found for path, line in named_in for found in _of_hydra(path, line)]
        others = " ".join(line for path, line in named_in if not _HYDRA_GROUP.search(path))
        msg += f" FSDP is named by {places}{_CHOSEN} {named_files(others)}".rstrip()
        if of_hydra:
            msg += f" Hydra takes {named(of_hydra, 3)} from the folder of its configs: convert that."
    return NothingToConvertError(msg, names_fsdp=False)


def _of_hydra(path: str, value: str) -> list[str]:
    """Return the file, within the folder of Hydra's configs, that an entry of a ``defaults`` list names."""
    group = _HYDRA_GROUP.search(path)
    if group is None or not re.fullmatch(r"[\w./-]+", value):
        return []
    return [f"{group['group']}/{value.removesuffix('.yaml')}.yaml"]


def _values_naming(documents: list[Node]) -> list[str]:
    """Return the paths of the values that name FSDP for the framework that a document shows."""
    texts = (one for document in documents for one in _texts(plain(document)))
    found = [path for path, value in texts if _telling(value) and not _is_label(path, value)]
    # What `defaults` choose stands in another file, which is not read.
    return [path for path in found if _shows_surely(documents) or not _OF_DEFAULTS.search(path)]


def with_stand_ins(text: str) -> str:
    """Return a text with what stands in for a variable that is not set in place of it.

    Example:
        >>> with_stand_ins("${2:-c.yaml} ${D-.}/t.py $E")
        'c.yaml ./t.py $E'
    """
    return _STAND_IN.sub(r"\1", text)


def without_folder(name: str, text: str) -> str:
    """Return a path with what a script sets the variable before it to, or without that.

    Example:
        >>> [without_folder(name, "D=/w") for name in ("$D/c.json", "$E/c.json", "$D.json")]
        ['/w/c.json', 'c.json', '$D.json']
    """
    whole = in_folder_of(name, text)
    return re.sub(r"\A\$\{?\w+\}?/(?!.*\$)", "", whole)


def named_files(text: str) -> str:
    """Say which files that may hold FSDP settings a command names, with the commands that convert them."""
    found = [
        name for name in dict.fromkeys(_NAMED_FILE.findall(with_stand_ins(text))) if not _DATA.search(name)
    ]
    files = list(dict.fromkeys(without_folder(name, text) for name in found))[:3]
    if not files:
        return ""
    commands = " or ".join(f"`fsdp-migrate config {name}`" for name in files if "$" not in name)
    told = f": {commands}, if it has FSDP settings" if commands else ", which may have FSDP settings"
    return f"It names {named(files)}{told}."


def _telling(value: str) -> list[str]:
    """Return the lines of a text that name FSDP; comments and what is printed choose nothing."""
    lines = (line.strip().removesuffix("\\").rstrip() for line in value.splitlines())
    return [line for line in lines if _FSDP.search(line) and not _IDLE.match(line)]


def _is_label(path: str, value: str) -> bool:
    """Tell whether a value is the name of a job or of a run, which chooses nothing."""
    parts = path.lower().split(".")
    if parts[-1] == "name" and (re.search(r"[- ]", value) or _NAMED.intersection(parts)):
        return True
    return "metadata" in parts or parts[-1] in _LABELS or _LABEL.search(parts[-1]) is not None


def _texts(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Yield every text in a document that stands as a value, with its path; a command's have `${...}`."""
    if isinstance(value, (str, Reference)):
        yield ".".join(path) or ".", str(value)
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _texts(inner, (*path, str(name)))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _texts(inner, (*path, str(index)))


def _uncertain(uncertain: list[tuple[Block, str]]) -> str:
    command = f"fsdp-migrate config {FILE}"
    parts = [
        f"`{block.name}` may be {title}'s: `{command} --from {block.framework} --key {block.name}`"
        for block, title in uncertain
    ]
    return (
        f"What is around these FSDP settings does not show their framework. {'; '.join(parts)}. Where code "
        "of its own reads them, `fsdp-migrate scan` looks."
    )


def argument_paths(documents: list[Node]) -> Iterator[str]:
    """Yield the paths of mappings with arguments of FSDP1: two, one where FSDP is named, or nothing else."""
    for document in documents:
        for path, mapping in mappings_of(document):
            names = set(effective(mapping))
            count = len(_ARGUMENTS & names)
            named = bool(path) and _FSDP.search(path[-1]) is not None
            if count >= 2 or (count and (named or (not path and names <= _ARGUMENTS))):
                yield ".".join(path)


def _fsdp_like(node: Node, path: tuple[str, ...] = ()) -> list[tuple[str, Any]]:
    """Return the paths of keys that have FSDP in their names, with the values."""
    node = target(node) if not path else node
    found: list[tuple[str, Any]] = []
    if isinstance(node, Mapping):
        for entry in node.entries:
            name = key_text(entry)
            if name is None or isinstance(entry.value, Alias):
                continue
            if _FSDP.search(name) and " " not in name.strip():  # not the title of a page
                found.append((".".join((*path, name)), plain(entry.value)))
            else:
                found += _fsdp_like(entry.value, (*path, name))
    elif isinstance(node, Sequence):
        for index, item in enumerate(node.items):
            found += _fsdp_like(item, (*path, str(index)))
    return found
