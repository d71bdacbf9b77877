"""One text, any framework: find the blocks that configure FSDP1, and make them FSDP2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fsdp_migrate.adapters.conversion.frameworks import ADAPTERS
from fsdp_migrate.adapters.conversion.unknown import FILE, nothing_found, off_paths
from fsdp_migrate.adapters.document.edits import Edits
from fsdp_migrate.adapters.document.json_reader import read_json
from fsdp_migrate.adapters.document.nodes import Mapping, Node, effective, plain
from fsdp_migrate.adapters.document.yaml_reader import read_yaml
from fsdp_migrate.adapters.engine.base import Adapter, Block, Draft, mappings_of
from fsdp_migrate.adapters.engine.settings import Settings
from fsdp_migrate.config import FSDP1Config, FSDP2Config
from fsdp_migrate.errors import ConfigError, NothingToConvertError, UnsupportedFeatureError
from fsdp_migrate.findings import make_finding, named
from fsdp_migrate.mapping import map_config


if TYPE_CHECKING:
    from collections.abc import Iterable

    from fsdp_migrate.findings import Finding


@dataclass(frozen=True, slots=True)
class BlockReport:
    """One block of a file: whose it is, where it stands, and what there was to do.

    ``state`` is ``converted``, ``fsdp2`` (it was FSDP2 already), ``unused`` (the framework does not read it)
    or ``unchanged`` (nothing of it could be converted here; the findings say why).
    ``code`` is Python that must go beside it, or None. ``is_left``: code of the project reads it itself.
    """

    framework: str
    path: str
    state: str
    code: str | None = None
    is_left: bool = False

    def as_dict(self) -> dict[str, str | None]:
        """Return the report as it stands in JSON."""
        return {"framework": self.framework, "path": self.path, "state": self.state, "code": self.code}


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
    framework: str = "auto",
    key: str | None = None,
    is_json: bool | None = None,
    settings: Settings | None = None,
    documents: list[Node] | None = None,
) -> TextConversion:
    r"""Turn the FSDP1 settings in a config into FSDP2's, and leave every other character as it is.

    Args:
        text: YAML, also of several documents, or JSON.
        framework: Whose config it is: one of ``ADAPTERS``, or ``auto``.
        key: The dotted path of the mapping to convert, where it is not found by itself.
        is_json: Whether it is JSON; by default by its looks.
        settings: The number of ranks and of nodes, where the file does not say them.
        documents: What :func:`read_documents` made of the text, where that was asked for already.

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
    documents = read_documents(body, is_json=as_json) if documents is None else documents
    blocks = [block for document in documents for block in find_blocks(document, framework, key)]
    uncertain = _uncertain(documents, framework, key)
    # An answer and no error: a file in which FSDP is off is as it should be, also for a script that converts
    # many files.
    if not blocks and not uncertain and framework == "auto" and key is None and (off := off_paths(documents)):
        return _switched_off(text, off)
    if not blocks:
        raise _nothing_found(text, documents, framework, key, uncertain, as_json)
    draft = Draft(Edits(body, as_json))
    for block, title in uncertain:
        hint = f"`fsdp-migrate config {FILE} --from {block.framework} --key {block.name}`."
        draft.say(
            "FM359",
            block.name,
            f"It may belong to {title}, but nothing around it shows that: left as it is.",
            hint,
        )
    # All blocks draft into one set of edits: they may share anchors, and overlap in what they change.
    reports = []
    for block in blocks:
        block.settings = settings or Settings()
        reports.append(_convert_block(ADAPTERS[block.framework], block, draft))
    result = _applied(draft.edits, documents, as_json)
    findings = tuple(draft.findings)
    return TextConversion(text, mark + result, tuple(reports), findings)


def _uncertain(documents: list[Node], framework: str, key: str | None) -> list[tuple[Block, str]]:
    if framework != "auto" or key is not None:
        return []
    found = [block for document in documents for block in uncertain_blocks(document) if not block.unused]
    # `nothing_found` names a mapping of torch's arguments, wherever it stands.
    return [(block, ADAPTERS[block.framework].title) for block in found if block.framework != "torch"]


def _switched_off(text: str, paths: list[str]) -> TextConversion:
    """Return the answer for a config in which FSDP is off."""
    findings = tuple(
        make_finding("FM351", path, "FSDP is off: there is nothing to convert.") for path in paths
    )
    return TextConversion(text, text, tuple(BlockReport("none", path, "unused") for path in paths), findings)


def _nothing_found(
    text: str,
    documents: list[Node],
    framework: str,
    key: str | None,
    uncertain: list[tuple[Block, str]],
    is_json: bool,
) -> ConfigError:
    def converts(path: str, framework: str = "torch") -> bool:
        try:
            done = convert_text(text, framework=framework, key=path, is_json=is_json)
        except (ConfigError, UnsupportedFeatureError):
            return False
        return not any(finding.fidelity == "refused" for finding in done.findings)

    whose = "" if framework == "auto" else f" of {ADAPTERS[framework].title}"
    error = nothing_found(documents, whose, key, uncertain, converts)
    names = [name for name in ("hf", "accelerate") if framework in {"auto", name}]
    if key is None and len(documents) == 1 and _is_flat(documents[0]) and not uncertain:
        commands = [f"`fsdp-migrate config {FILE} --from {n} --key .`" for n in names if converts(".", n)]
        if commands and isinstance(error, NothingToConvertError):
            said = f"If it is a whole `fsdp_config`, this converts it: {' or '.join(commands)}."
            return error.saying(f"{error} {said}")
    return error


def _is_flat(document: Node) -> bool:
    """Tell whether a document is keys of FSDP alone, of which several have the names of Accelerate's."""
    names = set(effective(document)) if isinstance(document, Mapping) else set()
    known = {f"fsdp_{key.name}" for key in ADAPTERS["accelerate"].keys}
    return len(names & known) > 1 and all(name.startswith("fsdp_") for name in names)


def find_blocks(document: Node, framework: str = "auto", key: str | None = None) -> list[Block]:
    """Return the blocks of one document that configure FSDP, each by the first framework that knows it.

    Raises:
        ConfigError: Nothing that could be a block stands at ``key``.
    """
    if key is not None:
        return _blocks_at(document, framework, key)
    if framework != "auto":
        return _apart(ADAPTERS[framework].detect(document))
    found = [block for block in _candidates(document) if block.is_certain]
    _refuse_two(found)
    return _apart(found)


def _refuse_two(blocks: list[Block]) -> None:
    """Raise where two frameworks surely read one block; Accelerate and Axolotl run others, and come first."""
    first = {block.path: block.framework for block in reversed(blocks)}
    for block in (block for block in blocks if block.framework != "torch"):
        other = first[block.path]
        if other != block.framework and other not in {"accelerate", "axolotl"} and not block.unused:
            both = " and ".join(ADAPTERS[name].title for name in (other, block.framework))
            msg = f"`{block.name}` has around it what is {both}'s. Name one of them with `--from`."
            raise ConfigError(msg, field=block.name)


def _candidates(document: Node) -> list[Block]:
    """Return what could be a block of any framework: first those that surely are."""
    found = [block for name in ADAPTERS for block in ADAPTERS[name].detect(document)]
    return sorted(found, key=lambda block: not block.is_certain)


def _apart(blocks: Iterable[Block]) -> list[Block]:
    """Return the blocks without those that overlap with an earlier one."""
    found: list[Block] = []
    for block in blocks:
        if not any(_overlap(block, other) for other in found):
            found.append(block)
    return found


def uncertain_blocks(document: Node) -> list[Block]:
    """Return blocks that may be of a framework, where nothing around them is surely its own."""
    found = _candidates(document)
    sure = [block for block in found if block.is_certain]
    return [
        block for block in found if not block.is_certain and not any(_overlap(block, other) for other in sure)
    ]


def _overlap(block: Block, other: Block) -> bool:
    first, second = block.path, other.path
    return first[: len(second)] == second or second[: len(first)] == first


def _blocks_at(document: Node, framework: str, key: str) -> list[Block]:
    path = tuple(part for part in key.split(".") if part)
    by_path = dict(mappings_of(document))
    node, owner = by_path.get(path), by_path.get(path[:-1])
    if node is None or owner is None:  # it may be a word, such as Lightning's `strategy: fsdp`
        found = _candidates(document) if framework == "auto" else ADAPTERS[framework].detect(document)
        return [block for block in found if block.path == path][:1]
    if framework == "auto":
        known = [block for block in find_blocks(document) if block.path == path or block.owner is node]
        if known:
            return known
        framework = "torch"
    block = ADAPTERS[framework].at(path, node, owner, document)
    if node.entries:  # who names it wants it converted, whether the framework reads it or not
        block.unused = None
    return [block]


def _convert_block(adapter: Adapter, block: Block, draft: Draft) -> BlockReport:
    if block.is_fsdp2:
        text = f"It is FSDP2 of {adapter.title} already: unchanged."
        if block.unread:
            unread = named(block.unread, len(block.unread))
            text += f" FSDP2 has no {unread} there: {adapter.title} warns, and runs without."
        draft.say("FM347", block.name, text)
        return BlockReport(adapter.name, block.name, "fsdp2")
    if block.unused:
        hint = None
        if block.node is not None and block.node.entries:
            command = f"fsdp-migrate config {FILE} --from {adapter.name} --key {block.name}"
            hint = f"`{command}` converts it all the same."
        draft.say("FM351", block.name, f"Left as it is: {block.unused}.", hint)
        return BlockReport(adapter.name, block.name, "unused")
    before, num_said = draft.edits.asked, len(draft.findings)
    adapter.emit(block, config_of(adapter, block, draft), draft)
    draft.settle(block)
    is_converted = draft.edits.asked > before or (block.code and not block.is_left)
    state = "converted" if is_converted else "unchanged"
    said = {finding.code for finding in draft.findings[num_said:]}
    if state == "unchanged" and said == {"FM347"}:  # of the file that it names
        state = "fsdp2"
    return BlockReport(adapter.name, block.name, state, block.code, block.is_left)


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
        # One value that means nothing must not keep the others from being converted: its key refuses it.
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
