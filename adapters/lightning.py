"""Lightning: ``FSDPStrategy`` in the YAML of Hydra or LightningCLI, and ``strategy: fsdp``.

They become ``ModelParallelStrategy``, which shards nothing itself: the LightningModule's ``configure_model``
does. That hook is emitted, with the FSDP1 arguments that stood in the config. Read in Lightning 2.6
(``strategies/fsdp.py``, ``strategies/model_parallel.py``).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from fsdp_migrate import words
from fsdp_migrate.adapters.document.edits import Change
from fsdp_migrate.adapters.document.nodes import Mapping, Node, Reference, effective, holds_reference
from fsdp_migrate.adapters.engine.base import (
    Block,
    Draft,
    Handler,
    Key,
    Outcome,
    is_known,
    keep,
    mapping_at,
    mappings_of,
    obsolete,
    owner_of,
    plain_values,
    read_number,
    shown,
)
from fsdp_migrate.adapters.engine.claims import LIGHTNING, LIGHTNING_FOLDERS
from fsdp_migrate.adapters.engine.lightning_groups import KEY, REASON, group_of_offload
from fsdp_migrate.adapters.engine.lightning_hook import (
    SYNC_BATCHNORM,
    function_code,
    hook_code,
    module_of,
    where_it_goes,
    where_written,
)
from fsdp_migrate.adapters.engine.lightning_hydra import is_hydra, tell_of_group, tell_of_reader
from fsdp_migrate.adapters.engine.lightning_policies import POLICIES, leave_own_policies, recomputed
from fsdp_migrate.adapters.engine.ownership import is_anothers, is_of
from fsdp_migrate.adapters.engine.shared_keys import LIMIT_ALL_GATHERS, ORIG_PARAMS, full_or_sharded
from fsdp_migrate.adapters.engine.torch_objects import (
    listed,
    own_policy,
    read_objects,
    target_of,
    with_siblings,
)
from fsdp_migrate.config import FSDP1Config


if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsdp_migrate.config import FSDP2Config


_CLASS = re.compile(r"(?:\A|\.)(FSDPStrategy|DDPFullyShardedNativeStrategy)\Z")
_MODEL_PARALLEL = re.compile(r"(?:\A|\.)ModelParallelStrategy\Z")
WORDS = {"fsdp": False, "fsdp_cpu_offload": True, "fsdp_native": False}
# Arguments that only Lightning's Trainer has by these names; the others have those of `WEAK` too.
STRONG = frozenset(
    {
        "accelerator",
        "devices",
        "num_nodes",
        "max_epochs",
        "callbacks",
        "accumulate_grad_batches",
        "gradient_clip_val",
        "check_val_every_n_epoch",
        "log_every_n_steps",
        "sync_batchnorm",
    }
)
WEAK = frozenset({"precision", "max_steps"})
MARKERS = STRONG | WEAK
# With others beside them, `WEAK` is no sign of the Trainer: it takes no `lr`, no `batch_size`.
TRAINER = MARKERS | frozenset(
    {
        *(
            "barebones",
            "benchmark",
            "default_root_dir",
            "detect_anomaly",
            "deterministic",
            "enable_autolog_hparams",
        ),
        *("enable_checkpointing", "enable_model_summary", "enable_progress_bar", "fast_dev_run"),
        *("gradient_clip_algorithm", "inference_mode", "limit_predict_batches", "limit_test_batches"),
        *("limit_train_batches", "limit_val_batches", "logger", "max_time", "min_epochs", "min_steps"),
        *("model_registry", "num_sanity_val_steps", "overfit_batches", "plugins", "profiler"),
        *("reload_dataloaders_every_n_epochs", "strategy", "use_distributed_sampler", "val_check_interval"),
    }
)
"""The arguments of Lightning's Trainer."""
PACKAGES = ("pytorch_lightning", "lightning.pytorch")
PRECISIONS = {"bf16-mixed": "bfloat16", "bf16": "bfloat16", "bf16-true": "bfloat16", "16-true": "float16"}


def in_hook(value: Any, block: Block) -> Outcome:
    """Take an argument out of the config: it stands in ``configure_model``."""
    del block
    if words.is_nothing(value):
        return Outcome("FM342", f"{shown(value)}: nothing was asked for.", remove=True)
    return Outcome(
        "FM355", f"{_short(value)}: stands in `configure_model`, where FSDP2 is told.", remove=True
    )


def prefetch_in_hook(value: Any, block: Block) -> Outcome:
    """Do as :func:`in_hook`; None, which FSDP1 took for no prefetching, stands in the hook as well."""
    if words.is_nothing(value):
        return Outcome("FM355", "null, no prefetching: stands in `configure_model`.", remove=True)
    return in_hook(value, block)


def to_save_distributed(value: Any, block: Block) -> Outcome:
    """Turn the type of checkpoints into ``save_distributed_checkpoint``."""
    del block
    word = full_or_sharded(value)
    text = (
        f"{shown(value)}: a checkpoint is "
        f"{'one file' if word == 'full' else 'a folder with a part of each rank'}."
    )
    return Outcome("FM341", text, key="save_distributed_checkpoint", value=word == "sharded", has_value=True)


def _short(value: Any) -> str:
    text = shown(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


_HOOK: Handler = in_hook
_RECOMPUTES = "in `configure_model`, as the keyword `activation_checkpointing=`"
LIGHTNING_KEYS: tuple[Key, ...] = (
    Key("sharding_strategy", "in `configure_model`", _HOOK),
    Key("cpu_offload", "in `configure_model`", _HOOK),
    Key("mixed_precision", "in `configure_model`", _HOOK),
    Key("auto_wrap_policy", "in `configure_model`", _HOOK),
    Key("activation_checkpointing", _RECOMPUTES, _HOOK),
    Key("activation_checkpointing_policy", _RECOMPUTES, _HOOK),
    Key("backward_prefetch", "in `configure_model`", prefetch_in_hook),
    Key("forward_prefetch", "in `configure_model`", _HOOK),
    Key("sync_module_states", "in `configure_model`", _HOOK),
    Key("ignored_modules", "in `configure_model`", _HOOK),
    Key("ignored_states", "in `configure_model`", _HOOK),
    Key("param_init_fn", "in `configure_model`", _HOOK),
    Key("device_mesh", "in `configure_model`", _HOOK),
    Key("state_dict_type", "`save_distributed_checkpoint`, true or false", to_save_distributed),
    LIMIT_ALL_GATHERS,
    ORIG_PARAMS,
    Key(KEY, "kept; with gloo beside NCCL under CPU offload", keep()),
    Key("timeout", "kept", keep()),
    Key("accelerator", "taken out: obsolete, the Trainer says it", obsolete("the Trainer says it.")),
    Key("parallel_devices", "taken out: obsolete, the Trainer says it", obsolete("the Trainer says it.")),
    Key(
        "cluster_environment", "taken out: obsolete, the Trainer finds it", obsolete("the Trainer finds it.")
    ),
    Key(
        "checkpoint_io",
        "taken out: obsolete, as the Trainer's plugin",
        obsolete("give it as the Trainer's plugin."),
    ),
    Key(
        "precision_plugin",
        "taken out: obsolete, the Trainer says it",
        obsolete("the Trainer's precision says it."),
    ),
)
_NOT_ARGUMENTS = frozenset({"_target_", "class_path", "_partial_", "_convert_"})
_TO_HOOK = frozenset(key.name for key in LIGHTNING_KEYS if key.handle in {in_hook, prefetch_in_hook})


class LightningAdapter:
    """Lightning's strategies in YAML."""

    name = "lightning"
    title = "Lightning"
    keys = LIGHTNING_KEYS

    def detect(self, document: Node) -> Iterator[Block]:
        """Yield each mapping that instantiates ``FSDPStrategy``, and each word ``strategy: fsdp``."""
        by_path = dict(mappings_of(document))
        for path, mapping in by_path.items():
            values = plain_values(mapping)
            target = target_of(values) or ""
            if _CLASS.search(target) or _MODEL_PARALLEL.search(target):
                block = self.at(path, mapping, by_path.get(path[:-1], mapping), document)
                block.is_certain = not is_anothers(mapping, self.name)
                yield block
                continue
            word = values.get("strategy")
            if isinstance(word, str) and word in WORDS and not is_anothers(mapping, self.name):
                block = Block(self.name, (*path, "strategy"), None, mapping, document)
                names = set(values)
                block.is_certain = is_of(target, self.name) or _are_trainers(names)
                # The word alone may be a file of a Hydra group, such as one of `@package trainer`.
                is_alone = not path and names <= {"strategy", "defaults"}
                if block.is_certain or MARKERS & names or is_alone or (path and path[-1] == "trainer"):
                    yield block

    def at(self, path: tuple[str, ...], node: Mapping, owner: Mapping, document: Node) -> Block:
        """Take a mapping for a strategy's."""
        block = Block(self.name, path, node, owner, document)
        block.is_fsdp2 = bool(_MODEL_PARALLEL.search(target_of(plain_values(node)) or ""))
        return block

    def parse(self, block: Block) -> dict[str, Any]:
        """Return the FSDP1 arguments that ``FSDPStrategy`` gives, with those of the Trainer's precision."""
        values = {
            name: listed(given) if name.endswith("policy") else given
            for name, value in _arguments(block).items()
            for given in [read_objects(value)]
            if name not in POLICIES or own_policy(value) is None
        }
        fields = set(FSDP1Config.model_fields)
        known = {name: v for name, v in values.items() if name in fields and not holds_reference(v)}
        known.pop("device_mesh", None)
        if known.get("cpu_offload") is None and block.node is None and _word(block) == "fsdp_cpu_offload":
            known["cpu_offload"] = True
        precision = plain_values(_trainer(block)).get("precision")
        dtype = PRECISIONS.get(str(precision))
        if known.get("mixed_precision") is None and dtype is not None:
            known["mixed_precision"] = dtype
        # FSDPStrategy sets it, where FSDP1's own default is false.
        known.setdefault("use_orig_params", True)
        nothing = {name for name, v in known.items() if words.is_nothing(v) or v == {}}
        # Said or not is not the same here: FSDP1's own default is BACKWARD_PRE, and None switches it off.
        off = {"backward_prefetch": None} if "backward_prefetch" in nothing else {}
        return {name: v for name, v in known.items() if name not in nothing} | off

    def emit(self, block: Block, config: FSDP2Config, draft: Draft) -> None:
        """Draft ``ModelParallelStrategy``, and emit the hook that shards the model."""
        is_fabric = _is_fabrics(block)
        reader = None if is_fabric or block.node is not None else tell_of_reader(block, draft)
        if reader is None:
            emit_strategy = _emit_word if block.node is None else _emit_mapping
            backend = group_of_offload(_arguments(block), offloads=config.offload_policy is not None)
            emit_strategy(block, _data_parallel_size(block, draft), backend, draft)
        checkpointing = recomputed(_arguments(block))
        shape = read_objects(_arguments(block).get("device_mesh"))
        shape = None if holds_reference(shape) else shape
        if is_fabric:
            block.code = function_code(self.parse(block), checkpointing, shape)
        else:
            synced = _sync_batchnorm(block, draft)
            block.code = hook_code(self.parse(block), checkpointing, shape, sync_batchnorm=synced)
        _say_precision(block, draft)
        if reader is not None:
            block.is_left = True
            block.code = None if reader.makes_strategy else block.code
            return
        if config.mesh != "shard":
            text = "Lightning's mesh is (data, tensor): the hook makes one of its own for this strategy."
            draft.say("FM355", block.at("sharding_strategy"), text)
        if is_fabric:
            text = "Fabric's ModelParallelStrategy shards nothing itself: `parallelize_fn` does, as emitted."
            hint = (
                "Give it the function, and make optimizers, and the lists of parameters that they are given, "
                "after `fabric.setup_module(model)`."
            )
            draft.say("FM355", block.at("parallelize_fn"), text, hint)
            return
        text = (
            "ModelParallelStrategy shards nothing itself: the LightningModule's `configure_model` does, as "
            "emitted."
        )
        draft.say("FM355", block.name, text, where_it_goes(block.settings.hook(module_of(block.root))))


def _arguments(block: Block) -> dict[str, Any]:
    node = _arguments_node(block)
    values = with_siblings(plain_values(node)) if node is not None else {}
    return {name: value for name, value in values.items() if name not in {"_target_", "class_path"}}


def _arguments_node(block: Block) -> Mapping | None:
    if block.node is None:
        return None
    return mapping_at(block.node, "init_args") if "class_path" in effective(block.node) else block.node


def _are_trainers(names: set[str]) -> bool:
    """Tell whether the arguments around ``strategy: fsdp`` show Lightning's Trainer."""
    if any(name.startswith("fsdp_") for name in names):
        return False  # what code of the project's own makes the strategy of
    return bool(STRONG & names) or (names >= WEAK and names - {"defaults"} <= TRAINER)


def _word(block: Block) -> Any:
    return plain_values(block.owner).get("strategy")


def _trainer(block: Block) -> Mapping:
    """Return the Trainer's arguments: the mapping around the strategy, or ``trainer`` of the document."""
    if MARKERS & set(effective(block.owner)) or not isinstance(block.root, Mapping):
        return block.owner
    return mapping_at(block.root, "trainer") or block.owner


def _data_parallel_size(block: Block, draft: Draft) -> Any:
    """Return the number of ranks; where nothing tells it, Hydra's word for a value that must be given."""
    if block.settings.world_size is not None:
        return block.settings.world_size
    values = plain_values(_trainer(block))
    devices, nodes = values.get("devices"), read_number(values.get("num_nodes", 1))
    if isinstance(devices, str) and "," in devices:  # "0,1", which Lightning reads as a list
        devices = [index for index in devices.split(",") if index.strip()]
    count = len(devices) if isinstance(devices, list) else read_number(devices)
    if count is not None and count > 0 and nodes is not None:
        return count * nodes
    subject = block.at("data_parallel_size")
    if is_hydra(block):
        text = (
            "The number of ranks, which this file does not say: `???` must be given (Hydra stops without it)."
        )
        draft.say("FM355", subject, text, "`--world-size N` writes it.")
        return "???"
    text = "ModelParallelStrategy needs the number of ranks, which this file does not say."
    draft.say("FM352", subject, text, "Give `--world-size N`.")
    return "auto"


def _model_parallel(target: str) -> str:
    package = next(
        (p for p in ("pytorch_lightning", "lightning.fabric", "lightning_fabric") if target.startswith(p)),
        None,
    )
    return f"{package or 'lightning.pytorch'}.strategies.ModelParallelStrategy"


def _target(node: Mapping) -> str:
    """Return the class that a strategy is."""
    values = plain_values(node)
    return str(values.get("_target_") or values.get("class_path") or "")


def _is_fabric(target: str) -> bool:
    return "fabric" in target


def _is_fabrics(block: Block) -> bool:
    """Tell whether a strategy is Fabric's: by its class, or where a word stands by what it is given to."""
    if block.node is not None:
        return _is_fabric(_target(block.node))
    return _is_fabric(_target(block.owner) or block.settings.lightning or "")


def _emit_word(block: Block, size: Any, backend: str | None, draft: Draft) -> None:
    entry = effective(block.owner)["strategy"]
    hydra = is_hydra(block)
    here = next((name for name in PACKAGES if name in draft.edits.text), None)
    package = here or block.settings.lightning or "lightning.pytorch"
    is_fabric = _is_fabrics(block)
    if is_fabric and not _is_fabric(package):
        package = _target(block.owner).rpartition(".Fabric")[0] or "lightning.fabric"
    target = f"{package}.strategies.ModelParallelStrategy"
    arguments = {
        "data_parallel_size": size,
        "tensor_parallel_size": 1,
        "save_distributed_checkpoint": is_fabric,
        **({KEY: backend} if backend is not None else {}),
    }
    value = {"_target_": target, **arguments} if hydra else {"class_path": target, "init_args": arguments}
    draft.edits.change(owner_of(block.owner, entry), Change(entry, value=value, has_value=True))
    text = (
        f"{_word(block)}: FSDP2 over {size} ranks. `save_distributed_checkpoint: {str(is_fabric).lower()}` "
        f"saves {'a folder' if is_fabric else 'one file'}, as FSDP1 did."
    )
    text += f" `{KEY}: {backend}`: {REASON}." if backend is not None else ""
    if not here and not block.settings.lightning and not is_fabric:
        text += " No source around says which Lightning runs: write `pytorch_lightning` where it is that one."
    draft.say("FM341", block.name, text)
    tell_of_group(block, draft)
    if _word(block) == "fsdp" and package == "pytorch_lightning":
        text = f"fsdp: {LIGHTNING['word_is_torchs'].says} from 2.0 on; before, it was fairscale's."
        draft.say(
            "FM358", block.name, text, "See which version ran: fairscale's FSDP is not what this converts."
        )


def _emit_mapping(block: Block, size: Any, backend: str | None, draft: Draft) -> None:
    assert block.node is not None
    key = "_target_" if "_target_" in effective(block.node) else "class_path"
    entry = effective(block.node)[key]
    target = str(plain_values(block.node)[key])
    new = _model_parallel(target)
    outcome = Outcome("FM341", "Lightning's strategy for FSDP2.", value=new, has_value=True)
    draft.take(owner_of(block.node, entry), entry, outcome, block.at(key))
    node = _arguments_node(block)
    wanted: dict[str, Any] = {"data_parallel_size": size, "tensor_parallel_size": 1}
    is_fabric = _is_fabric(target)
    saved = "a folder" if is_fabric else "one file"
    if node is None or "state_dict_type" not in effective(node):
        # FSDPStrategy saves one file under the Trainer, and a part for each rank under Fabric.
        wanted["save_distributed_checkpoint"] = is_fabric
    if node is None:
        text = f"FSDP2 over all ranks, no tensor parallelism, {saved} for a checkpoint, as FSDP1 did."
        draft.set(block.node, "init_args", wanted, block.at("init_args"), text)
        return
    path = block.path if node is block.node else (*block.path, "init_args")
    inner = Block(block.framework, path, node, block.owner, block.root, settings=block.settings)
    ignored = _NOT_ARGUMENTS if backend is None else _NOT_ARGUMENTS | {KEY}
    draft.table(inner, LIGHTNING_KEYS, ignore=ignored)
    _hook_references(inner, draft, is_fabric=is_fabric)
    leave_own_policies(inner, draft)
    if not is_fabric and str(plain_values(node).get("state_dict_type")).lower() == "sharded":
        draft.say("FM343", inner.at("save_distributed_checkpoint"), LIGHTNING_FOLDERS)
    reasons = {
        "data_parallel_size": "FSDP2 over all ranks",
        "tensor_parallel_size": "no tensor parallelism; Lightning's default is all ranks of a node",
        "save_distributed_checkpoint": f"{saved} for a checkpoint, the default of FSDPStrategy",
    }
    if backend is not None:
        draft.set(node, KEY, backend, inner.at(KEY), f"{backend}: {REASON}.")
    for name, value in wanted.items():
        draft.add(node, name, value, inner.at(name), f"{shown(value)}: {reasons[name]}.")


def _hook_references(block: Block, draft: Draft, *, is_fabric: bool) -> None:
    """Take out references too: ModelParallelStrategy takes none of these arguments."""
    assert block.node is not None
    values = with_siblings(plain_values(block.node))
    for name, entry in effective(block.node).items():
        value = read_objects(values[name])
        if name not in _TO_HOOK or not holds_reference(plain_values(block.node)[name]):
            continue
        # The table kept the reference, and said so: what is done here takes the place of that.
        draft.findings[:] = [finding for finding in draft.findings if finding.subject != block.at(name)]
        if holds_reference(value):
            text = f"{_short(value)} is not set in this file: removed, and not in the hook."
            outcome = Outcome("FM346", text, where_written(name, is_fabric=is_fabric), remove=True)
        else:
            outcome = in_hook(value, block)
        draft.take(owner_of(block.node, entry), entry, outcome, block.at(name))


def _sync_batchnorm(block: Block, draft: Draft) -> bool:
    """Tell whether the hook is to do what ``sync_batchnorm`` did, and say so."""
    given = plain_values(_trainer(block)).get("sync_batchnorm")
    place = _beside_trainer(block, "sync_batchnorm")
    if isinstance(given, Reference):
        text = f"{given} is not set in this file. FSDPStrategy heeds it; ModelParallelStrategy does not."
        draft.say("FM346", place, text, f"If it is true, let the hook begin with `{SYNC_BATCHNORM}`.")
        return False
    synced = not words.is_nothing(given) and words.read_bool(given, "sync_batchnorm")
    if synced:
        text = f"{shown(given)}: ModelParallelStrategy does not heed it; the hook converts the layers."
        draft.say("FM355", place, text)
    return synced


def _beside_trainer(block: Block, name: str) -> str:
    """Return where an argument of the Trainer stands."""
    return block.beside(name) if _trainer(block) is block.owner else f"trainer.{name}"


def _say_precision(block: Block, draft: Draft) -> None:
    trainer = _trainer(block)
    precision = plain_values(trainer).get("precision")
    place = _beside_trainer(block, "precision")
    if not is_known(_arguments(block).get("mixed_precision")) and _is_elsewhere(precision, trainer, block):
        text = (
            f"It is {'no plain value here' if precision else 'not in this file'}. FSDPStrategy takes the "
            "dtypes of `bf16-mixed` and the like from it; the hook casts nothing."
        )
        hint = "Under `bf16-mixed` add `'mixed_precision': 'bfloat16'` to the hook's arguments."
        if "sync_batchnorm" not in plain_values(trainer) and not _is_fabrics(block):
            hint += f" Under `sync_batchnorm: true` let it begin with `{SYNC_BATCHNORM}`."
        draft.say("FM356", place, text, hint)
        return
    if str(precision) not in {"16", "16-mixed"}:
        return
    text = (
        f"{precision}: ModelParallelStrategy has no 16-mixed (its gradients would need a scaler for "
        "DTensors)."
    )
    hint = "Write `precision: bf16-mixed` (or 32-true, 16-true), and convert again."
    draft.say("FM357", place, text, hint)


def _is_elsewhere(precision: Any, trainer: Mapping, block: Block) -> bool:
    """Tell whether the Trainer's precision stands elsewhere: in another file, or behind a reference."""
    if precision is not None:
        return isinstance(precision, Reference)
    root = effective(block.root) if isinstance(block.root, Mapping) else {}
    return not MARKERS & set(effective(trainer)) or "defaults" in root
