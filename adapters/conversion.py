"""One text, any stack: find the blocks that configure FSDP1, and make them FSDP2."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fsdp_migrate import words
from fsdp_migrate.adapters.base import Adapter, Block, Draft, Settings, mappings_of
from fsdp_migrate.adapters.edits import Edits
from fsdp_migrate.adapters.json_reader import read_json
from fsdp_migrate.adapters.nodes import Alias, Mapping, Node, Sequence, key_text, plain, target
from fsdp_migrate.adapters.stacks import ADAPTERS, STACKS
from fsdp_migrate.adapters.yaml_reader import read_yaml
from fsdp_migrate.config import FSDP1Config, FSDP2Config
from fsdp_migrate.errors import ConfigError, UnsupportedFeatureError
from fsdp_migrate.mapping import map_config


if TYPE_CHECKING:
    from fsdp_migrate.findings import Finding


_FSDP = re.compile(r"fsdp|fully_?sharded", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class BlockReport:
    """One block of a file: whose it is, where it stands, and what there was to do.

    ``state`` is ``converted``, ``fsdp2`` (it was FSDP2 already) or ``unused`` (the stack does not read it).
    ``code`` is Python that must go beside it, or None.
    """

    stack: str
    path: str
    state: str
    code: str | None = None

    def as_dict(self) -> dict[str, str | None]:
        """Return the report as it stands in JSON."""
        return {"stack": self.stack, "path": self.path, "state": self.state, "code": self.code}


@dataclass(frozen=True, slots=True)
class TextConversion:
    """A config before (``source``) and after (``text``), and what became of its parts."""

    source: str
    text: str
    blocks: tuple[BlockReport, ...]
    findings: tuple[Finding, ...]

    @property
    def is_changed(self) -> bool:
        """Whether anything is different."""
        return self.text != self.source


def read_documents(text: str, *, is_json: bool) -> list[Node]:
    """Read every document of a text, without its byte order mark.

    Raises:
        ConfigError: It is no YAML, or no JSON; the message has line and column.
    """
    return [read_json(text)] if is_json else read_yaml(text)


def looks_like_json(text: str) -> bool:
    """Tell whether a text is JSON rather than YAML: it opens as JSON does, and reads as JSON."""
    if not text.lstrip().startswith("{"):
        return False
    try:
        read_json(text)
    except ConfigError:
        return False
    return True


def convert_text(
    text: str,
    *,
    stack: str = "auto",
    key: str | None = None,
    is_json: bool | None = None,
    settings: Settings | None = None,
) -> TextConversion:
    r"""Turn the FSDP1 settings in a config into FSDP2's, and leave every other character as it is.

    Args:
        text: YAML, also of several documents, or JSON.
        stack: Whose config it is: one of ``STACKS``, or ``auto``.
        key: The dotted path of the mapping to convert, where it is not found by itself.
        is_json: Whether it is JSON; by default by its looks.
        settings: The number of ranks and of nodes, where the file does not say them.

    Raises:
        ConfigError: It cannot be read, nothing in it configures FSDP, or nothing stands at ``key``.
        UnsupportedFeatureError: Its layout does not let it be edited; the message says where.

    Example:
        >>> text = "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: 2  # ZeRO-2\n"
        >>> print(convert_text(text).text)
        distributed_type: FSDP
        fsdp_config:
          fsdp_reshard_after_forward: false  # ZeRO-2
          fsdp_version: 2
          fsdp_state_dict_type: FULL_STATE_DICT
        <BLANKLINE>
    """
    mark, body = ("\ufeff", text[1:]) if text.startswith("\ufeff") else ("", text)
    as_json = looks_like_json(body) if is_json is None else is_json
    documents = read_documents(body, is_json=as_json)
    blocks = [block for document in documents for block in find_blocks(document, stack, key)]
    if not blocks:
        raise _nothing_found(documents, stack, key)
    draft = Draft(Edits(body, as_json))
    reports = []
    for block in blocks:
        block.settings = settings or Settings()
        reports.append(_convert_block(ADAPTERS[block.stack], block, draft))
    result = _applied(draft.edits, documents, as_json)
    findings = tuple(draft.findings)
    return TextConversion(text, mark + result, tuple(reports), findings)


def find_blocks(document: Node, stack: str = "auto", key: str | None = None) -> list[Block]:
    """Return the blocks of one document that configure FSDP, each by the first stack that knows it.

    Raises:
        ConfigError: Nothing that could be a block stands at ``key``.
    """
    if key is not None:
        return _blocks_at(document, stack, key)
    names = STACKS if stack == "auto" else (stack,)
    found: list[Block] = []
    for name in names:
        for block in ADAPTERS[name].detect(document):
            if not any(_overlap(block, other) for other in found):
                found.append(block)
    return found


def _overlap(block: Block, other: Block) -> bool:
    first, second = block.path, other.path
    return first[: len(second)] == second or second[: len(first)] == first


def _blocks_at(document: Node, stack: str, key: str) -> list[Block]:
    path = tuple(part for part in key.split(".") if part)
    by_path = dict(mappings_of(document))
    node, owner = by_path.get(path), by_path.get(path[:-1])
    if node is None or owner is None:
        return []
    if stack == "auto":
        known = [block for block in find_blocks(document) if block.path == path or block.owner is node]
        if known:
            return known
        stack = "torch"
    return [ADAPTERS[stack].at(path, node, owner, document)]


def _convert_block(adapter: Adapter, block: Block, draft: Draft) -> BlockReport:
    if block.is_fsdp2:
        draft.say("FM347", block.name, f"It is FSDP2 of {adapter.title} already: unchanged.")
        return BlockReport(adapter.name, block.name, "fsdp2")
    if block.unused:
        hint = f"`--from {adapter.name} --key {block.name}` converts it all the same."
        draft.say("FM351", block.name, f"Left as it is: {block.unused}.", hint)
        return BlockReport(adapter.name, block.name, "unused")
    adapter.emit(block, config_of(adapter, block, draft), draft)
    return BlockReport(adapter.name, block.name, "converted", block.code)


def config_of(adapter: Adapter, block: Block, draft: Draft | None = None) -> FSDP2Config:
    """Return the FSDP2 config that a block means; a value that means nothing is left to its key to tell.

    Raises:
        ConfigError: Without a draft: a value means nothing.
    """
    try:
        arguments = adapter.parse(block)
    except ConfigError:
        if draft is None:
            raise
        arguments = {}
    if draft is not None:
        arguments = {name: value for name, value in arguments.items() if _means_something(name, value)}
    try:
        return map_config(FSDP1Config(**arguments))[0]
    except ConfigError as error:
        if draft is None:
            raise
        draft.say("FM348", block.at(error.field or "fsdp"), str(error), "Correct it, and convert again.")
        return FSDP2Config()


def _means_something(name: str, value: Any) -> bool:
    try:
        FSDP1Config(**{name: value})
    except ConfigError:
        return False
    return True


def _applied(edits: Edits, documents: list[Node], is_json: bool) -> str:
    """Return the edited text, read once more to see that it says what was meant and nothing else."""
    result = edits.apply()
    if result == edits.text:
        return result
    try:
        after = [plain(node) for node in read_documents(result, is_json=is_json)]
    except ConfigError as error:
        after, reason = None, f": {error}"
    else:
        reason = "."
    if after != [edits.expected(document) for document in documents]:
        msg = f"The layout of this file does not let it be edited safely, so nothing was changed{reason}"
        raise UnsupportedFeatureError(msg, feature="layout")
    return result


def _nothing_found(documents: list[Node], stack: str, key: str | None) -> ConfigError:
    whose = "" if stack == "auto" else f" of {ADAPTERS[stack].title}"
    if key is not None:
        paths = sorted(
            {".".join(path) for document in documents for path, _ in mappings_of(document) if path}
        )
        near = words.closest(key, paths)
        return ConfigError(f"There is no mapping at `{key}`.{near}", field=key)
    seen = list(dict.fromkeys(path for document in documents for path in _fsdp_like(document)))
    if not seen:
        return ConfigError(f"Nothing in it configures FSDP{whose}: there is nothing to convert.")
    if any("actor_rollout_ref" in path for path in seen) or any(map(_is_verls, documents)):
        msg = (
            f"It configures FSDP for verl ({', '.join(f'`{path}`' for path in seen[:4])}), whose settings "
            "are its "
            "own: verl runs FSDP2 with `strategy: fsdp2` for the actor and the critic. There is nothing to "
            "convert."
        )
        return ConfigError(msg)
    shown = ", ".join(f"`{path}`" for path in seen[:6]) + (", ..." if len(seen) > 6 else "")
    msg = (
        f"Nothing in it configures FSDP1{whose} in a way that is known here. What names FSDP is {shown}. "
        "If one of them is a mapping of FSDP settings, name it with `--key`, and its stack with `--from`."
    )
    return ConfigError(msg)


def _is_verls(document: Node) -> bool:
    return isinstance(document, Mapping) and str(plain(document).get("_target_", "")).startswith("verl.")


def _fsdp_like(node: Node, path: tuple[str, ...] = ()) -> list[str]:
    """Return the paths of keys that have FSDP in their names."""
    node = target(node) if not path else node
    found: list[str] = []
    if isinstance(node, Mapping):
        for entry in node.entries:
            name = key_text(entry)
            if name is None or isinstance(entry.value, Alias):
                continue
            if _FSDP.search(name):
                found.append(".".join((*path, name)))
            else:
                found += _fsdp_like(entry.value, (*path, name))
    elif isinstance(node, Sequence):
        for index, item in enumerate(node.items):
            found += _fsdp_like(item, (*path, str(index)))
    return found
